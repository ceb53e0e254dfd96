#include "core/base/files/sight.hpp"

#include <utility>

#include "core/base/files/listed_folders.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

thread_local Sight* sight_of_thread = nullptr;
thread_local OpenedFiles* opened_by_thread = nullptr;

/// The type, links followed; not_found if the path cannot be accessed.
fs::file_type type_behind(fs::path const& path) {
  if (is_listed_folder(path)) return fs::file_type::directory;
  if (auto const listed = listed_type(path); listed && *listed != fs::file_type::symlink)
    return *listed;
  std::error_code problem;
  fs::file_type const type = fs::status(path, problem).type();
  return type == fs::file_type::none ? fs::file_type::not_found : type;
}

}  // namespace

Sight* current_sight() { return sight_of_thread; }

SightScope::SightScope(Sight* sight) : before_(std::exchange(sight_of_thread, sight)) {}
SightScope::~SightScope() { sight_of_thread = before_; }

OpenedFiles::OpenedFiles() : before_(std::exchange(opened_by_thread, this)) {}
OpenedFiles::~OpenedFiles() { opened_by_thread = before_; }

void OpenedFiles::note(fs::path const& path, std::function<FileStamp()> const& stamp) {
  if (opened_by_thread != nullptr && !opened_by_thread->stamps_.contains(path))
    opened_by_thread->stamps_.emplace(path, stamp());
}

std::string seen(std::string_view what, fs::path const& path,
                 std::function<std::string()> const& look) {
  Sight* const sight = current_sight();
  return sight == nullptr ? look() : sight->see(fmt::format("{} {}", what, path.string()), look);
}

bool seen_flag(std::string_view what, fs::path const& path, std::function<bool()> const& look) {
  return seen(what, path, [&] { return std::string(look() ? "1" : "0"); }) == "1";
}

std::vector<std::string> seen_names(std::string_view what, fs::path const& path,
                                    std::function<std::vector<std::string>()> const& look) {
  if (current_sight() == nullptr) return look();
  std::string const all = seen(what, path, [&] {
    std::string joined;
    for (std::string const& name : look()) joined.append(name).push_back('\0');
    return joined;
  });
  std::vector<std::string> names;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end + 1) {
    end = all.find('\0', begin);
    names.push_back(all.substr(begin, end - begin));
  }
  return names;
}

bool sees_anything(fs::path const& path) {
  return seen_flag("exists", path, [&] { return type_behind(path) != fs::file_type::not_found; });
}

bool sees_file(fs::path const& path) {
  return seen_flag("is a file", path, [&] { return type_behind(path) == fs::file_type::regular; });
}

bool sees_folder(fs::path const& path) {
  return seen_flag("is a folder", path,
                   [&] { return type_behind(path) == fs::file_type::directory; });
}

}  // namespace reshard
