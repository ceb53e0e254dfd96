#include "stages/write/leftovers.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <sstream>

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "core/base/files/file_time.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/threads/retry.hpp"
#include "stages/write/journal.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Kind = HiddenName::Kind;

constexpr std::int64_t ns_per_second = 1'000'000'000;
constexpr std::size_t token_digits = 16;
constexpr std::uint64_t most_owner_bytes = 4096;
constexpr std::array<std::string_view, 3> endings = {"part", "resume", "old"};

fs::path hidden(fs::path const& target, std::string_view ending, std::string_view token) {
  fs::path const place = absolute_target(target);
  return place.parent_path() / fmt::format(".{}.{}{}{}", place.filename().string(), ending,
                                           token.empty() ? "" : "-", token);
}

bool is_token(std::string_view text) {
  return text.size() == token_digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// "part-0123456789abcdef" or "part".
std::optional<HiddenName> parse_ending(std::string_view ending) {
  for (std::size_t kind = 0; kind < endings.size(); ++kind) {
    if (!ending.starts_with(endings[kind])) continue;
    std::string_view const rest = ending.substr(endings[kind].size());
    if (!rest.empty() && (rest.front() != '-' || !is_token(rest.substr(1)))) continue;
    return HiddenName{"", static_cast<Kind>(kind),
                      std::string(rest.empty() ? rest : rest.substr(1))};
  }
  return std::nullopt;
}

/// The latest time of change of a path and of its content; nullopt if it does not exist.
std::optional<std::int64_t> newest_change(fs::path const& root) {
  struct stat status {};
  if (::lstat(root.c_str(), &status) != 0) return std::nullopt;
  std::int64_t newest = nanoseconds_since_1970(status.st_mtim);
  if (!S_ISDIR(status.st_mode)) return newest;
  std::error_code ended;
  for (fs::recursive_directory_iterator it(root, ended);
       !ended && it != fs::recursive_directory_iterator(); it.increment(ended))
    if (::lstat(it->path().c_str(), &status) == 0)
      newest = std::max(newest, nanoseconds_since_1970(status.st_mtim));
  return newest;
}

std::string token_of(fs::path const& left) {
  auto const name = parse_hidden_name(left.filename().string());
  return name ? name->token : "";
}

/// A sentence if the path or its content has changed too recently for its run to have ended.
std::optional<std::string> fresh(fs::path const& path, std::int64_t now_ns,
                                 std::string const& host) {
  auto const newest = newest_change(path);
  std::int64_t const quiet =
      token_of(path).empty() ? quiet_seconds_of_earlier_versions : quiet_seconds;
  if (!newest || *newest > now_ns + quiet * ns_per_second)
    return std::nullopt;  // a time in the future is not the time of a write
  std::int64_t const age = std::max<std::int64_t>(0, now_ns - *newest) / ns_per_second;
  if (age >= quiet) return std::nullopt;
  return fmt::format(
      "{} changed {} s ago{}{}, and a run counts as ended only after {} s without a change",
      path.string(), age, host.empty() ? "" : " by a run on ", host, quiet);
}

}  // namespace

fs::path absolute_target(fs::path const& target) {
  fs::path path = full_path(target);
  if (path.filename().empty())
    fail(ErrorKind::target, "{}: cannot be a target. Name a folder below it.", target.string());
  return path;
}

std::string make_token() {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != sizeof word)
    fail(ErrorKind::io, "getrandom: {}. Check the system.", system_reason(errno));
  return fmt::format("{:016x}", word);
}

fs::path staging_of(fs::path const& target, std::string_view token) {
  return hidden(target, endings[0], token);
}
fs::path journal_of(fs::path const& target, std::string_view token) {
  return hidden(target, endings[1], token);
}
fs::path old_of(fs::path const& target, std::string_view token) {
  return hidden(target, endings[2], token);
}
fs::path lock_of(fs::path const& target) { return hidden(target, "lock", ""); }

std::optional<HiddenName> parse_hidden_name(std::string_view name) {
  std::size_t const dot = name.rfind('.');
  if (!name.starts_with('.') || dot == std::string_view::npos || dot < 2) return std::nullopt;
  auto parsed = parse_ending(name.substr(dot + 1));
  if (parsed) parsed->target = name.substr(1, dot - 1);
  return parsed;
}

std::vector<fs::path> Leftovers::all() const {
  std::vector<fs::path> paths = staging;
  paths.insert(paths.end(), old.begin(), old.end());
  paths.insert(paths.end(), journals.begin(), journals.end());
  return paths;
}

Leftovers leftovers_of(fs::path const& target) {
  fs::path const place = absolute_target(target);
  Leftovers found;
  std::error_code ended;
  for (fs::directory_iterator it(place.parent_path(), ended);
       !ended && it != fs::directory_iterator(); it.increment(ended)) {
    auto const name = parse_hidden_name(it->path().filename().string());
    if (!name || name->target != place.filename().string()) continue;
    if (name->kind == Kind::staging) found.staging.push_back(it->path());
    if (name->kind == Kind::journal) found.journals.push_back(it->path());
    if (name->kind == Kind::old && (!name->token.empty() || !is_there(place)))
      found.old.push_back(it->path());
  }
  // An incomplete list would hide an active run. A parent that is missing or a file has no entries:
  // preflight reports it.
  if (ended && ended != std::errc::no_such_file_or_directory && ended != std::errc::not_a_directory)
    fail(ended == std::errc::permission_denied ? ErrorKind::target : ErrorKind::io,
         "{}: cannot be listed: {}. Check the folder and its permissions.",
         place.parent_path().string(), ended.message());
  for (auto* const list : {&found.staging, &found.journals, &found.old})
    std::sort(list->begin(), list->end());
  return found;
}

std::vector<fs::path> places_of(fs::path const& target) {
  std::vector<fs::path> places = leftovers_of(target).all();
  places.insert(places.end(),
                {target, lock_of(target), staging_of(target, ""), journal_of(target, "")});
  return places;
}

bool is_there(fs::path const& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

Owner this_owner(std::string_view token) {
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  return {std::string(token), this_boot_id(), host.data()};
}

void write_owner(fs::path const& journal, Owner const& owner) {
  fs::path const made = journal / fmt::format("{}.new", owner_name);  // half a record is none
  write_text_file(made, fmt::format("{}\n{}\n{}\n{}\n", owner.token, owner.boot, owner.host,
                                    owner.ended ? "ended" : "writing"));
  if (::rename(made.c_str(), (journal / owner_name).c_str()) != 0)
    fail_errno(made, "rename", errno);
}

std::optional<Owner> read_owner(fs::path const& journal) {
  int const descriptor = retried([&] {
    return ::open((journal / owner_name).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  });
  if (descriptor < 0) return std::nullopt;
  struct stat status {};
  std::string text;
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
      static_cast<std::uint64_t>(status.st_size) <= most_owner_bytes)
    text.resize(static_cast<std::size_t>(status.st_size));
  ssize_t const got = retried([&] { return ::pread(descriptor, text.data(), text.size(), 0); });
  ::close(descriptor);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  std::istringstream file(text);
  Owner owner;
  std::string state;
  if (!std::getline(file, owner.token) || !std::getline(file, owner.boot) ||
      !std::getline(file, owner.host) || !std::getline(file, state))
    return std::nullopt;
  owner.ended = state == "ended";
  return owner;
}

std::optional<std::string> sign_of_life(Leftovers const& left, bool locked, std::int64_t now_ns) {
  std::map<std::string, Owner> owners;  // by the token in the name
  for (fs::path const& journal : left.journals)
    if (auto owner = read_owner(journal)) owners[token_of(journal)] = *std::move(owner);
  // The time of an old checkpoint is not that of the run that was replacing it.
  for (auto const* const list : {&left.journals, &left.staging})
    for (fs::path const& path : *list) {
      auto const owner = owners.find(token_of(path));
      bool const known = owner != owners.end();
      bool const over =
          known ? owner->second.ended || (locked && owner->second.boot == this_boot_id()) : locked;
      if (over) continue;
      if (auto sign = fresh(path, now_ns, known ? owner->second.host : "")) return sign;
    }
  return std::nullopt;
}

/// The names in an open folder; closes it.
static std::vector<std::string> names_behind(int descriptor, std::error_code& error) {
  std::vector<std::string> names;
  DIR* const open = ::fdopendir(descriptor);
  if (open == nullptr) {
    error.assign(errno, std::generic_category());
    ::close(descriptor);
    return names;
  }
  errno = 0;
  while (dirent const* const entry = ::readdir(open)) {
    std::string const name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) error.assign(errno, std::generic_category());
  ::closedir(open);
  return names;
}

void remove_folder(fs::path const& folder, std::error_code& error) {
  error.clear();
  // Links are not followed.
  int const descriptor = retried(
      [&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); });
  if (descriptor < 0) {
    if (errno == ENOTDIR || errno == ELOOP)
      fs::remove(folder, error);
    else if (errno != ENOENT)
      error.assign(errno, std::generic_category());
    return;
  }
  std::vector<fs::path> first;
  bool has_source = false;
  for (std::string const& name : names_behind(descriptor, error))
    if (name != journal_source_name)
      first.push_back(folder / name);
    else
      has_source = true;
  // Most are files, of which remove_all() would first ask whether they are folders.
  for (fs::path const& path : first)
    if (!error && ::unlink(path.c_str()) != 0) fs::remove_all(path, error);
  if (error) return;
  if (has_source) (void)::unlink((folder / journal_source_name).c_str());
  if (::rmdir(folder.c_str()) != 0) fs::remove_all(folder, error);
}

bool discard(fs::path const& left, fs::path const& own_name) {
  auto const refuse = [&](std::string const& reason) {
    fail(ErrorKind::target,
         "{}: left by an earlier job, cannot be removed: {}. Remove it, then run again.",
         left.string(), reason);
  };
  if (::rename(left.c_str(), own_name.c_str()) != 0) {
    int const reason = errno;
    if (reason == ENOENT) return false;
    if (reason == ENOSPC || reason == EDQUOT) fail_errno(left, "rename", reason);
    refuse(system_reason(reason));
  }
  std::error_code error;
  remove_folder(own_name, error);
  if (error) refuse(fmt::format("{} ({})", error.message(), own_name.string()));
  return true;
}

bool put_back_old(fs::path const& target, Leftovers const& left) {
  if (left.old.empty() || is_there(target)) return false;
  if (::rename(left.old.front().c_str(), target.c_str()) != 0)
    fail(ErrorKind::target,
         "{}: is the checkpoint that an interrupted run was replacing, and cannot be renamed back: "
         "{}. Rename it to {}.",
         left.old.front().string(), system_reason(errno), target.string());
  return true;
}

}  // namespace reshard
