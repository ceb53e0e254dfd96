#include "core/formats/huggingface/file_metadata.hpp"

#include <algorithm>
#include <map>

#include "core/base/text/json.hpp"

namespace reshard::huggingface {

void add_metadata(std::vector<FileMetadata>& all, std::string_view file, Metadata const& entries) {
  if (std::ranges::any_of(entries, [](auto const& entry) { return entry.first != "format"; }))
    all.push_back({std::string(file), entries});
}

std::string metadata_text(std::span<FileMetadata const> all) {
  Json::Object files;
  for (FileMetadata const& one : all) {
    Json::Object entries;
    for (auto const& [key, text] : one.entries) entries.emplace_back(key, text);
    files.emplace_back(one.file, std::move(entries));
  }
  return Json(std::move(files)).dump(2) + "\n";
}

std::vector<FileMetadata> parse_metadata(std::string_view text, std::string const& place) {
  auto const refuse = [&] {
    fail(ErrorKind::source,
         "{}: expected an object of files, each with an object of strings. The file is damaged: "
         "restore it.",
         place);
  };
  Json const read = parse_json(text, place);
  std::vector<FileMetadata> result;
  if (read.members() == nullptr) refuse();
  for (auto const& [file, entries] : *read.members()) {
    if (entries.members() == nullptr) refuse();
    FileMetadata& one = result.emplace_back(FileMetadata{file, {}});
    for (auto const& [key, value] : *entries.members()) {
      if (value.text() == nullptr) refuse();
      one.entries.emplace_back(key, *value.text());
    }
  }
  return result;
}

Metadata metadata_of(std::span<FileMetadata const> all, std::string_view file,
                     std::vector<std::string>& lost) {
  auto const own = std::ranges::find(all, file, &FileMetadata::file);
  if (own != all.end()) return own->entries;
  Metadata result;
  std::map<std::string_view, std::string_view> seen;
  for (FileMetadata const& one : all)
    for (auto const& [key, text] : one.entries) {
      auto const [known, fresh] = seen.emplace(key, text);
      if (fresh)
        result.emplace_back(key, text);
      else if (known->second != text && std::ranges::find(lost, key) == lost.end())
        lost.push_back(key);
    }
  std::erase_if(result, [&](auto const& entry) {
    return std::ranges::find(lost, entry.first) != lost.end();
  });
  return result;
}

}  // namespace reshard::huggingface
