#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/base/files/listed_folders.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/dcp/describe.hpp"
#include "core/formats/dcp/source.hpp"
#include "core/formats/headers/shared_headers.hpp"

namespace reshard::dcp {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view sharding_info = "DCP_SHARDING_INFO";

std::string const* member(safetensors::Header const& header, std::string_view key) {
  for (auto const& [name, value] : header.metadata)
    if (name == key) return &value;
  return nullptr;
}

/// Collects the boxes of all files by tensor name.
class BoxCollector {
 public:
  explicit BoxCollector(StoredTable& stored) : stored_(stored) {}

  void add_file(std::uint32_t file, fs::path const& path, safetensors::Header const& header) {
    std::string const* text = member(header, sharding_info);
    Json const info = text == nullptr
                          ? Json()
                          : parse_json(*text, path.string() + ", " + std::string(sharding_info));
    Members const saved = members_of(info);
    for (FileTensor const& tensor : header.tensors)
      add_box(file, path, tensor, offsets_of(saved, path, tensor));
  }

  void finish() {
    for (auto& [name, boxes] : boxes_) {
      StoredTensor tensor{name, boxes.dtype, boxes.shape,
                          narrow<std::uint32_t>(stored_.chunks.size()), 0};
      if (boxes.chunks.empty()) boxes.chunks.push_back(boxes.empty);
      for (StoredChunk const& chunk : boxes.chunks) stored_.chunks.push_back(chunk);
      tensor.chunk_count = narrow<std::uint32_t>(stored_.chunks.size()) - tensor.first_chunk;
      stored_.tensors.push_back(std::move(tensor));
    }
  }

 private:
  struct Boxes {
    bool seen = false;
    DType dtype = DType::u8;
    std::vector<Index> shape;
    std::vector<StoredChunk> chunks;
    StoredChunk empty;  ///< the first box without elements: a tensor without elements has one chunk
  };

  /// The entry of DCP_SHARDING_INFO for each tensor; a file may have a million of them.
  using Members = std::unordered_map<std::string_view, Json const*>;

  static Members members_of(Json const& info) {
    Members members;
    if (info.members() == nullptr) return members;
    members.reserve(info.members()->size());
    for (auto const& [name, value] : *info.members()) members.emplace(name, &value);
    return members;
  }

  static std::vector<Index> offsets_of(Members const& info, fs::path const& path,
                                       FileTensor const& tensor) {
    std::vector<Index> offsets(tensor.shape.size(), 0);
    auto const entry = info.find(tensor.name);
    Json const* saved = entry == info.end() ? nullptr : entry->second->find("saved_offsets");
    if (saved == nullptr) return offsets;
    auto const* items = saved->items();
    bool good = items != nullptr && items->size() == offsets.size();
    for (std::size_t d = 0; good && d < offsets.size(); ++d) {
      auto const* number = (*items)[d].integer();
      good = number != nullptr && *number >= 0 && *number <= INT64_MAX - tensor.shape[d];
      if (good) offsets[d] = *number;
    }
    if (!good)
      fail(
          ErrorKind::source,
          "{}: saved_offsets of '{}' are {}, expected {} numbers from 0 on. The file is damaged: save it again.",
          path.string(), safetensors::shown(tensor.name), saved->dump(), offsets.size());
    return offsets;
  }

  void add_box(std::uint32_t file, fs::path const& path, FileTensor const& tensor,
               std::vector<Index> const& offsets) {
    Boxes& boxes = boxes_[tensor.name];
    bool const first = !boxes.seen;
    if (first) {
      boxes.seen = true;
      boxes.dtype = tensor.dtype;
      boxes.shape.assign(offsets.size(), 0);
    }
    if (boxes.dtype != tensor.dtype || boxes.shape.size() != offsets.size())
      fail(
          ErrorKind::source,
          "{}: '{}' is {} with {} dimensions here, {} with {} in another file. Save the checkpoint again.",
          path.string(), safetensors::shown(tensor.name), name(tensor.dtype), offsets.size(),
          name(boxes.dtype), boxes.shape.size());
    for (std::size_t d = 0; d < offsets.size(); ++d)
      boxes.shape[d] = std::max(boxes.shape[d], offsets[d] + tensor.shape[d]);
    IndexLists& lists = stored_.lists;
    StoredChunk const chunk{lists.add(offsets),
                            lists.add(tensor.shape),
                            {file, tensor.offset_bytes, tensor.size_bytes}};
    if (tensor.size_bytes > 0)
      boxes.chunks.push_back(chunk);
    else if (first)  // of other files, a rank without rows
      boxes.empty = chunk;
  }

  StoredTable& stored_;
  std::map<std::string, Boxes> boxes_;
};

std::vector<std::string> safetensors_names(fs::path const& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (std::string const& name : names_in(folder, ignored))
    if (fs::path(name).extension() == ".safetensors") names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

/// The checkpoint except for its stamps.
Checkpoint checkpoint_of(fs::path const& path, std::vector<fs::path> files,
                         std::span<safetensors::Header const> headers) {
  Checkpoint checkpoint;
  checkpoint.format = &boxed_safetensors();
  checkpoint.storage = Storage::chunks;
  checkpoint.root = checkpoint.folder = path;
  checkpoint.place = path.string();
  checkpoint.files = std::move(files);
  BoxCollector boxes(checkpoint.stored);
  for (std::size_t f = 0; f < headers.size(); ++f)
    boxes.add_file(narrow<std::uint32_t>(f), checkpoint.files[f], headers[f]);
  boxes.finish();
  checkpoint.summary = fmt::format("{} in {}", counted(checkpoint.stored.chunks.size(), "chunk"),
                                   counted(checkpoint.files.size(), "file"));
  return checkpoint;
}

}  // namespace

std::vector<fs::path> safetensors_files(fs::path const& path) {
  std::vector<fs::path> files;
  for (std::string const& name :
       seen_names("safetensors files in", path, [&] { return safetensors_names(path); }))
    files.push_back(allowed_member(path, name));
  return files;
}

bool looks_like_boxed_safetensors(fs::path const& path) {
  if (sees_anything(path / huggingface::index_name)) return false;
  std::vector<fs::path> const files = safetensors_files(path);
  if (files.empty()) return false;
  safetensors::Header const header =
      safetensors::read_header(File::open_for_reading(files.front()));
  return member(header, sharding_info) != nullptr;
}

Format const& boxed_safetensors() {
  static BoxedSafetensors const format;
  return format;
}

bool BoxedSafetensors::probe(fs::path const& path) const {
  return looks_like_boxed_safetensors(path);
}

std::string BoxedSafetensors::why_incomplete(fs::path const& /*path*/) const { return {}; }

Checkpoint BoxedSafetensors::open(fs::path const& path, OpenChoice const& /*choice*/,
                                  HeaderExchange const& exchange) const {
  Checkpoint read;
  exchange.together_seeing([&] { read.files = safetensors_files(path); });
  std::vector<safetensors::Header> const headers = shared_safetensors_headers(read, exchange);
  Checkpoint checkpoint;
  exchange.together([&] { checkpoint = checkpoint_of(path, read.files, headers); });
  checkpoint.stamps.taken = std::move(read.stamps.taken);
  checkpoint.stamps.rank = std::move(read.stamps.rank);
  checkpoint.warnings.push_back(
      "safetensors files of a distributed save do not record the size of a tensor. It is taken "
      "from the largest box, so a missing last file is not detected");
  return checkpoint;
}

Inspection BoxedSafetensors::describe(fs::path const& path,
                                      megatron::UserSizes const& /*sizes*/) const {
  std::vector<fs::path> files = safetensors_files(path);
  std::vector<safetensors::Header> headers;
  for (fs::path const& file : files)
    headers.push_back(safetensors::read_header(File::open_for_reading(file)));
  return inspection(path, checkpoint_of(path, std::move(files), headers), false, Json());
}

}  // namespace reshard::dcp
