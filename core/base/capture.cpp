#include "core/base/capture.hpp"

#include <filesystem>
#include <new>
#include <system_error>

#include "core/base/files/file.hpp"

namespace reshard {
namespace {

/// The Error of a failed call of std::filesystem, by the same rules as those of our own calls. The
/// library's words are "filesystem error: cannot remove all: Input/output error [path]".
Error error_of(std::filesystem::filesystem_error const& refused) {
  std::string_view const said = refused.what();
  constexpr std::string_view before = " cannot ";
  std::size_t const begin = said.find(before);
  std::string_view doing = "access";
  if (begin != std::string_view::npos)
    doing = said.substr(begin + before.size(),
                        said.find(": ", begin + before.size()) - begin - before.size());
  try {
    fail_errno(refused.path1().empty() ? "a folder" : refused.path1(), doing,
               refused.code().value());  // an iterator that moves on names none
  } catch (Error const& error) {
    return error;
  }
}

Error unexpected(std::exception const& error) {
  return {ErrorKind::internal,
          fmt::format(
              "internal error: {}. This is a bug of reshard: please report it with the job file.",
              error.what())};
}

}  // namespace

Error thread_refused(std::error_code const& code) {
  return {ErrorKind::resources,
          fmt::format("a thread could not be started: {}. Lower run.threads, start fewer ranks on "
                      "this host, or raise its limits of memory (ulimit -v) and of processes "
                      "(ulimit -u).",
                      code.message())};
}

std::optional<Error> capture(std::function<void()> const& work) {
  try {
    work();
    return std::nullopt;
  } catch (Error const& error) {
    return error;
  } catch (std::filesystem::filesystem_error const& refused) {
    return error_of(refused);
  } catch (std::system_error const& refused) {
    if (refused.code() != std::errc::resource_unavailable_try_again) return unexpected(refused);
    return thread_refused(refused.code());
  } catch (std::bad_alloc const&) {
    return Error(ErrorKind::resources,
                 "out of memory. Lower run.memory, start fewer ranks on this host, or raise its "
                 "limit of memory (ulimit -v).");
  } catch (std::exception const& error) {
    return unexpected(error);
  }
}

}  // namespace reshard
