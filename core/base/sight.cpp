#include "core/base/sight.hpp"

#include <utility>

namespace reshard {
namespace {

namespace fs = std::filesystem;

thread_local Sight* sight_of_thread = nullptr;
thread_local OpenedFiles* opened_by_thread = nullptr;

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
  return seen_flag("exists", path, [&] {
    std::error_code ignored;
    return fs::exists(path, ignored);
  });
}

bool sees_file(fs::path const& path) {
  return seen_flag("is a file", path, [&] {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored);
  });
}

bool sees_folder(fs::path const& path) {
  return seen_flag("is a folder", path, [&] {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
  });
}

}  // namespace reshard
