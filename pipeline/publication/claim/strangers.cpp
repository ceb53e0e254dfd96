#include "pipeline/publication/claim/strangers.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/formats/manifest/sha256_sums.hpp"

namespace reshard {

namespace fs = std::filesystem;

static constexpr std::size_t most_named = 3;

std::set<std::string> written_files(Manifest const& manifest) {
  std::set<std::string> files{std::string(manifest_name)};
  for (FileRecord const& file : manifest.files) files.insert(file.path);
  if (Json const* const names = manifest.source.find("files");
      names != nullptr && names->items() != nullptr)
    for (Json const& name : *names->items())
      if (name.text() != nullptr) files.insert(*name.text());
  if (files.size() > 1) files.emplace(sums_name);
  return files;
}

bool leads_to_one_of(std::set<std::string> const& files, std::string const& folder) {
  auto const next = files.lower_bound(folder + "/");
  return next != files.end() && next->starts_with(folder + "/");
}

std::string find_stranger(fs::path const& folder, std::set<std::string> const& files,
                          Folders folders, std::error_code& error) {
  error.clear();
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    std::string const name = it->path().lexically_relative(folder).generic_string();
    bool const is_folder = fs::is_directory(it->symlink_status(ignored));
    if (is_folder ? folders == Folders::count && !leads_to_one_of(files, name)
                  : !files.contains(name))
      return name;
  }
  return "";
}

Strangers strangers_in(fs::path const& folder,
                       std::function<bool(std::string const&, bool)> const& belongs) {
  std::vector<std::string> names;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    std::string name = it->path().lexically_relative(folder).generic_string();
    bool const is_folder = fs::is_directory(it->symlink_status(ignored));
    if (belongs(name, is_folder)) continue;
    if (is_folder) it.disable_recursion_pending();
    names.push_back(std::move(name));
  }
  if (error) names.push_back("something that cannot be listed: " + error.message());
  Strangers found{{}, names.size()};
  std::ranges::sort(names);
  names.resize(std::min(names.size(), most_named));
  found.first = std::move(names);
  return found;
}

std::string text_of(Strangers const& strangers) {
  std::string text = fmt::format("{}", fmt::join(strangers.first, ", "));
  std::size_t const more = strangers.count - strangers.first.size();
  return more == 0 ? text : fmt::format("{} and {} more", text, more);
}

std::string stranger_in(fs::path const& folder, std::set<std::string> const& files) {
  std::error_code error;
  std::string const stranger = find_stranger(folder, files, Folders::count, error);
  return error ? "something that cannot be listed: " + error.message() : stranger;
}

}  // namespace reshard
