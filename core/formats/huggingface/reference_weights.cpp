#include "core/formats/huggingface/reference_weights.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/base/text/wire.hpp"
#include "core/base/threads/workers.hpp"
#include "core/containers/safetensors/safetensors.hpp"

namespace reshard::huggingface {

namespace {

struct ReadHeader {
  bool sound = false;
  std::string bytes;
  std::uint64_t file_bytes = 0;
};

constexpr auto wire_fields(ReadHeader const&) {
  return std::tuple(&ReadHeader::sound, &ReadHeader::bytes, &ReadHeader::file_bytes);
}

ReadHeader header_in(std::filesystem::path const& path, std::optional<FileStamp>& stamp) {
  File const opened = File::open_for_reading(path);
  stamp = opened.stamp();
  try {
    return {true, safetensors::read_head(opened), opened.size_bytes()};
  } catch (Error const& error) {
    if (error.kind() != ErrorKind::source) throw;  // a disk that fails must not change the target
    return {};
  }
}

}  // namespace

WeightMap const& ReferenceWeights::weight_map() {
  if (reference_ && !reference_->weight_map.empty()) return reference_->weight_map;
  if (map_) return *map_;
  map_.emplace();
  if (!reference_) return *map_;
  std::string const file(single_file_name);
  if (auto const& header = header_of(file))
    for (FileTensor const& tensor :
         safetensors::parse_header(std::as_bytes(std::span(header->bytes)), header->file_bytes,
                                   (reference_->path / file).string())
             .tensors)
      map_->emplace_back(tensor.name, file);
  return *map_;
}

std::string ReferenceWeights::reference_name(std::string_view name) const {
  constexpr std::string_view word = "layers.";
  std::size_t const at = name.find(word);
  if (layers_.empty() || at == std::string_view::npos || name.substr(0, at).ends_with("mtp."))
    return std::string(name);  // depths are counted apart
  std::size_t const digits = at + word.size();
  Index layer = -1;
  auto const [end, error] = std::from_chars(name.data() + digits, name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0 || layer >= std::ssize(layers_)) return std::string(name);
  return fmt::format("{}{}{}", name.substr(0, digits), layers_[static_cast<std::size_t>(layer)],
                     std::string_view(end, name.data() + name.size()));
}

bool ReferenceWeights::has(std::string_view target_name) {
  std::string const name = reference_name(target_name);
  if (!names_) {
    names_.emplace();
    for (auto const& [tensor, file] : weight_map()) names_->insert(tensor);
    if (reference_) names_->insert(reference_->further.begin(), reference_->further.end());
  }
  if (name.find_first_of("*?") == std::string::npos) return names_->contains(name);
  return std::ranges::any_of(*names_,
                             [&](std::string const& known) { return matches_glob(name, known); });
}

std::optional<ReferenceWeights::FileHeader> const& ReferenceWeights::header_of(
    std::string const& file) {
  static std::optional<FileHeader> const nothing;
  if (!reference_) return nothing;
  if (headers_.empty()) {
    std::set<std::string> files;
    for (auto const& [tensor, of_index] : reference_->weight_map) files.insert(of_index);
    read_headers({files.begin(), files.end()});
  }
  if (!headers_.contains(file)) read_headers({file});
  return headers_.at(file);
}

std::optional<ReferenceWeights::FileHeader> ReferenceWeights::take_header(std::string const& file) {
  std::optional<FileHeader> const& found = header_of(file);
  if (!found) return std::nullopt;
  data_bytes_[file] = found->file_bytes - found->bytes.size();
  return std::exchange(headers_.at(file), std::nullopt);
}

/// In one look, whatever their number.
void ReferenceWeights::read_headers(std::vector<std::string> const& files) {
  if (files.empty()) return;
  std::filesystem::path const& folder = reference_->path;
  auto const kinds =
      member_kinds(folder, std::vector<std::filesystem::path>(files.begin(), files.end()));
  std::string const what =
      fmt::format("headers of {} from {}", counted(files.size(), "file"), files.front());
  auto const look = [&] {
    SightScope const own(nullptr);
    std::vector<ReadHeader> read(files.size());
    std::vector<std::optional<FileStamp>> stamps(files.size());
    overlapped(files.size(), [&](std::size_t f) {
      if (kinds[f] == MemberKind::file) read[f] = header_in(folder / files[f], stamps[f]);
    });
    for (std::size_t f = 0; f < files.size(); ++f)
      if (stamps[f]) OpenedFiles::note(folder / files[f], [&] { return *stamps[f]; });
    return read;
  };
  std::vector<ReadHeader> read;
  if (current_sight() == nullptr) {  // nothing to tell to others: so many bytes are not held twice
    read = look();
  } else {
    std::string const packed = seen(what, folder, [&] {
      WireWriter out;
      out.put(look());
      return std::move(out).take();
    });
    read = WireReader(packed, what).all<std::vector<ReadHeader>>();
  }
  for (std::size_t f = 0; f < files.size(); ++f) {
    std::optional<FileHeader>& header = headers_[files[f]];
    if (read[f].sound) header = FileHeader{std::move(read[f].bytes), read[f].file_bytes};
  }
}

bool ReferenceWeights::has_index_of(std::unordered_map<SharedText, SharedText> const& file_of,
                                    std::uint64_t bytes) {
  if (!reference_ || reference_->weight_map.size() != file_of.size()) return false;
  bool const same_places = std::ranges::all_of(reference_->weight_map, [&](auto const& entry) {
    auto const found = file_of.find(entry.first);
    return found != file_of.end() && found->second == entry.second;
  });
  if (!same_places) return false;
  Json const* const stated = reference_->index_metadata.find("total_size");
  bool const same_size = stated == nullptr || *stated == Json(bytes) ||
                         *stated == Json(static_cast<double>(bytes));  // some write 1.5e10
  return same_size || data_bytes() == bytes;
}

/// Of all files of the index; 0 where one cannot be read.
std::uint64_t ReferenceWeights::data_bytes() {
  std::set<std::string_view> files;
  for (auto const& [tensor, file] : reference_->weight_map) files.insert(file);
  std::uint64_t result = 0;
  for (std::string_view const file : files) {
    if (auto const taken = data_bytes_.find(std::string(file)); taken != data_bytes_.end()) {
      result += taken->second;
      continue;
    }
    auto const& header = header_of(std::string(file));
    if (!header) return 0;
    result += header->file_bytes - header->bytes.size();
  }
  return result;
}

}  // namespace reshard::huggingface
