#include "pipeline/target/strangers.hpp"

#include "core/formats/manifest/sha256_sums.hpp"

namespace reshard {

namespace fs = std::filesystem;

std::set<std::string> written_files(Manifest const& manifest) {
  std::set<std::string> files{std::string(manifest_name), std::string(sums_name)};
  for (FileRecord const& file : manifest.files) files.insert(file.path);
  if (Json const* const names = manifest.source.find("files");
      names != nullptr && names->items() != nullptr)
    for (Json const& name : *names->items())
      if (name.text() != nullptr) files.insert(*name.text());
  return files;
}

std::string find_stranger(fs::path const& folder, std::set<std::string> const& files,
                          Folders folders, std::error_code& error) {
  auto const leads_to_a_file = [&](std::string const& directory) {
    auto const next = files.lower_bound(directory + "/");
    return next != files.end() && next->starts_with(directory + "/");
  };
  error.clear();
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    std::string const name = it->path().lexically_relative(folder).generic_string();
    bool const is_folder = fs::is_directory(it->symlink_status(ignored));
    if (is_folder ? folders == Folders::count && !leads_to_a_file(name) : !files.contains(name))
      return name;
  }
  return "";
}

std::string stranger_in(fs::path const& folder, std::set<std::string> const& files) {
  std::error_code error;
  std::string const stranger = find_stranger(folder, files, Folders::count, error);
  return error ? "something that cannot be listed: " + error.message() : stranger;
}

}  // namespace reshard
