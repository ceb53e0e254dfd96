#include "core/formats/huggingface/reference_weights.hpp"

#include <algorithm>

#include "core/base/file.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text.hpp"
#include "core/containers/safetensors/safetensors.hpp"

namespace reshard::huggingface {

std::vector<std::pair<std::string, std::string>> const& ReferenceWeights::weight_map() {
  if (map_) return *map_;
  map_.emplace();
  if (!reference_) return *map_;
  *map_ = reference_->weight_map;
  if (!map_->empty()) return *map_;
  std::string const file(single_file_name);
  if (auto const header = header_of(file))
    for (FileTensor const& tensor :
         safetensors::parse_header(std::as_bytes(std::span(header->bytes)), header->file_bytes,
                                   (reference_->path / file).string())
             .tensors)
      map_->emplace_back(tensor.name, file);
  return *map_;
}

bool ReferenceWeights::has(std::string_view name) {
  if (!names_) {
    names_.emplace();
    for (auto const& [tensor, file] : weight_map()) names_->insert(tensor);
  }
  if (name.find_first_of("*?") == std::string_view::npos) return names_->contains(name);
  return std::ranges::any_of(*names_,
                             [&](std::string const& known) { return matches_glob(name, known); });
}

std::optional<ReferenceWeights::FileHeader> ReferenceWeights::header_of(
    std::string const& file) const {
  if (!reference_ || member_kinds(reference_->path, std::vector<std::filesystem::path>{file}) !=
                         std::vector{MemberKind::file})
    return std::nullopt;
  File const opened = File::open_for_reading(reference_->path / file);
  try {
    return FileHeader{safetensors::read_head(opened), opened.size_bytes()};
  } catch (Error const& error) {
    if (error.kind() != ErrorKind::source) throw;  // a disk that fails must not change the target
    return std::nullopt;
  }
}

bool ReferenceWeights::has_index_of(
    std::map<std::string, std::string, std::less<>> const& file_of) const {
  return reference_ && reference_->weight_map.size() == file_of.size() &&
         std::ranges::all_of(reference_->weight_map, [&](auto const& entry) {
           auto const found = file_of.find(entry.first);
           return found != file_of.end() && found->second == entry.second;
         });
}

}  // namespace reshard::huggingface
