#include "stages/read/open_dcp.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "core/base/member_file.hpp"
#include "core/base/sight.hpp"
#include "core/base/text.hpp"
#include "core/base/wire.hpp"
#include "core/containers/dcp/item.hpp"
#include "core/containers/dcp/item_paths.hpp"
#include "core/transport/shared_sight.hpp"
#include "stages/read/shared_headers.hpp"
#include "stages/read/stamped_files.hpp"
#include "stages/read/unflatten.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view sharding_info = "DCP_SHARDING_INFO";

/// What item heads say, for the other ranks.
void pack(WireWriter& out, dcp::ItemTensor const& item) {
  out.number(item.payload_offset_bytes).number(item.storage_offset_bytes);
  out.number(item.storage_bytes).put(item.strides);
}

/// Reads the heads of all items, each rank those of a run of chunks, and gives all of them to every
/// rank.
void read_item_heads(SourceCheckpoint& source, StampedFiles& files, Comm const& comm) {
  DcpCheckpoint& checkpoint = *source.dcp;
  dcp::Metadata const& metadata = checkpoint.metadata;
  std::size_t const count = metadata.chunks.size();
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const first_of = [&](std::size_t rank) {
    return count / ranks * rank + std::min(rank, count % ranks);
  };
  WireWriter mine;
  together(comm, [&] {
    auto const rank = static_cast<std::size_t>(comm.rank());
    for (dcp::StoredTensor const& tensor : metadata.tensors) {
      std::size_t const begin = std::max<std::size_t>(tensor.first_chunk, first_of(rank));
      std::size_t const end =
          std::min<std::size_t>(tensor.first_chunk + tensor.chunk_count, first_of(rank + 1));
      for (std::size_t c = begin; c < end; ++c) {
        dcp::Chunk const& chunk = metadata.chunks[c];
        auto const file = files.open(chunk.item.file);
        pack(mine, dcp::read_tensor_item(*file, chunk.item, tensor.dtype, metadata.sizes(chunk),
                                         tensor.name));
      }
    }
  });
  for (std::string const& packed : comm.all_gather(mine.bytes())) {
    for (WireReader in(packed, "the item heads of a rank"); !in.empty(); in.check()) {
      dcp::ItemPlace const& item = metadata.chunks[checkpoint.payload_offset_bytes.size()].item;
      checkpoint.payload_offset_bytes.push_back(in.number());
      std::uint64_t const record = in.number();
      std::uint64_t const record_bytes = in.number();
      if (record_bytes > 0)
        source.records.push_back(
            {item.file, record, record_bytes, item.offset_bytes, item.size_bytes, std::nullopt});
      auto strides = in.get<std::vector<Index>>();
      if (!strides.empty())
        checkpoint.strides[checkpoint.payload_offset_bytes.size() - 1] = std::move(strides);
    }
  }
  RESHARD_EXPECT(checkpoint.payload_offset_bytes.size() == count);
}

/// An object is a zip archive: its first and last record must stand where it begins and ends.
void check_archive(File const& file, dcp::StoredObject const& object) {
  constexpr std::string_view first = "PK\x03\x04";
  constexpr std::string_view last = "PK\x05\x06";
  constexpr std::size_t last_bytes = 22;
  std::string bytes(last_bytes, '\0');
  bool whole = object.item.size_bytes >= 2 * last_bytes;
  if (whole) {
    file.read_at(object.item.offset_bytes,
                 std::as_writable_bytes(std::span(bytes).first(first.size())));
    whole = bytes.starts_with(first);
    file.read_at(object.item.offset_bytes + object.item.size_bytes - last_bytes,
                 std::as_writable_bytes(std::span(bytes)));
    whole = whole && bytes.starts_with(last);
  }
  if (!whole)
    fail(
        ErrorKind::source,
        "{}: '{}' at byte {} with {} bytes is no whole torch file. The file or its .metadata is damaged: copy the checkpoint again.",
        file.path().string(), object.name, object.item.offset_bytes, object.item.size_bytes);
}

/// Objects lie inside their files; tensors are looked at by read_item_heads.
void check_objects(dcp::Metadata const& metadata, StampedFiles& files) {
  for (dcp::StoredObject const& object : metadata.objects) {
    auto const file = files.open(object.item.file);
    std::uint64_t const bytes = file->size_bytes();
    if (object.item.offset_bytes <= bytes &&
        object.item.size_bytes <= bytes - object.item.offset_bytes) {
      check_archive(*file, object);
      continue;
    }
    fail(
        ErrorKind::source,
        "{}: '{}' is said to lie at bytes [{}, +{}), the file has {}. The file was cut short: copy it again.",
        file->path().string(), object.name, object.item.offset_bytes, object.item.size_bytes,
        bytes);
  }
}

std::string const* member(safetensors::Header const& header, std::string_view key) {
  for (auto const& [name, value] : header.metadata)
    if (name == key) return &value;
  return nullptr;
}

/// Collects the boxes of all files by tensor name.
class BoxCollector {
 public:
  explicit BoxCollector(DcpCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  void add_file(std::uint32_t file, fs::path const& path, safetensors::Header const& header) {
    std::string const* text = member(header, sharding_info);
    Json const info = text == nullptr
                          ? Json()
                          : parse_json(*text, path.string() + ", " + std::string(sharding_info));
    checkpoint_.metadata.files.push_back(path.filename().string());
    Members const saved = members_of(info);
    for (FileTensor const& tensor : header.tensors)
      add_box(file, path, tensor, offsets_of(saved, path, tensor));
  }

  void finish() {
    dcp::Metadata& metadata = checkpoint_.metadata;
    for (auto& [name, boxes] : boxes_) {
      dcp::StoredTensor tensor{name, boxes.dtype, boxes.shape,
                               narrow<std::uint32_t>(metadata.chunks.size()), 0};
      for (auto const& [chunk, payload] : boxes.chunks) {
        metadata.chunks.push_back(chunk);
        checkpoint_.payload_offset_bytes.push_back(payload);
      }
      tensor.chunk_count = narrow<std::uint32_t>(metadata.chunks.size()) - tensor.first_chunk;
      metadata.tensors.push_back(std::move(tensor));
    }
  }

 private:
  struct Boxes {
    bool seen = false;
    DType dtype = DType::u8;
    std::vector<Index> shape;
    std::vector<std::pair<dcp::Chunk, std::uint64_t>> chunks;
  };

  /// What DCP_SHARDING_INFO says of each tensor: a file may have a million of them.
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
    if (!boxes.seen) {
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
    if (tensor.size_bytes == 0) return;  // a rank without rows
    dcp::IndexLists& lists = checkpoint_.metadata.lists;
    dcp::Chunk const chunk{lists.add(offsets),
                           lists.add(tensor.shape),
                           {file, tensor.offset_bytes, tensor.size_bytes}};
    boxes.chunks.emplace_back(chunk, tensor.offset_bytes);
  }

  DcpCheckpoint& checkpoint_;
  std::map<std::string, Boxes> boxes_;
};

std::vector<std::string> safetensors_names(fs::path const& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (auto const& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".safetensors")
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
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

SourceCheckpoint open_dcp_metadata(fs::path const& path, Comm const& comm) {
  SourceCheckpoint source;
  DcpCheckpoint checkpoint;
  together_seeing(comm, [&] {
    checkpoint.directory = dcp::open_directory(path);
    fs::path const& folder = checkpoint.directory.folder;
    checkpoint.metadata = dcp::read_metadata(File::open_for_reading(folder / dcp::metadata_name));
    checkpoint.flavour = dcp::flavour_of(checkpoint.directory, checkpoint.metadata);
    source.files = dcp::item_paths(checkpoint.directory, checkpoint.metadata);
  });
  source.dcp = std::move(checkpoint);
  return source;
}

SourceCheckpoint open_dcp(fs::path const& path, Comm const& comm) {
  SourceCheckpoint source = open_dcp_metadata(path, comm);
  DcpCheckpoint& checkpoint = *source.dcp;
  StampedFiles files(source.files);
  together(comm, [&] {
    if (comm.rank() == 0) check_objects(checkpoint.metadata, files);
  });
  together_seeing(comm, [&] {
    if (checkpoint.flavour == dcp::Flavour::torch_dist)
      checkpoint.common = dcp::read_common(checkpoint.directory, checkpoint.metadata);
  });
  read_item_heads(source, files, comm);
  files.give_stamps(source, comm);
  together(comm, [&] { unflatten(checkpoint); });
  return source;
}

DcpCheckpoint boxed_checkpoint(fs::path const& path, std::span<fs::path const> files,
                               std::span<safetensors::Header const> headers) {
  DcpCheckpoint checkpoint;
  checkpoint.container = TensorContainer::safetensors;
  checkpoint.directory.root = checkpoint.directory.folder = path;
  BoxCollector boxes(checkpoint);
  for (std::size_t f = 0; f < headers.size(); ++f)
    boxes.add_file(narrow<std::uint32_t>(f), files[f], headers[f]);
  boxes.finish();
  return checkpoint;
}

SourceCheckpoint open_boxed_safetensors(fs::path const& path, Comm const& comm) {
  SourceCheckpoint source;
  together_seeing(comm, [&] { source.files = safetensors_files(path); });
  std::vector<safetensors::Header> const headers = shared_safetensors_headers(source, comm);
  together(comm, [&] { source.dcp = boxed_checkpoint(path, source.files, headers); });
  source.warnings.push_back(
      "safetensors files of a distributed save do not say how large a tensor is: the largest box decides, so a missing last file goes unnoticed");
  return source;
}

}  // namespace reshard
