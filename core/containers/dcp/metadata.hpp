#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/file.hpp"
#include "core/base/integers.hpp"
#include "core/containers/dcp/metadata_id_table.hpp"

namespace reshard::dcp {

/// Short lists of integers (offsets and sizes of chunks), each different one stored once. Lists are
/// named by number.
class IndexLists {
 public:
  using Id = std::uint32_t;
  Id add(std::span<Index const> list);
  std::span<Index const> operator[](Id id) const {
    return {values_.data() + begin_[id], begin_[id + 1] - begin_[id]};
  }
  std::size_t size() const { return begin_.size() - 1; }

 private:
  std::vector<Index> values_;
  std::vector<std::size_t> begin_{0};
  IdTable table_;
};

/// The bytes of one stored item: [offset_bytes, +size_bytes) of Metadata::files[file].
struct ItemPlace {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  friend bool operator==(ItemPlace const&, ItemPlace const&) = default;
};

/// A box of a tensor: rows [offset, offset + size) of every dimension, and its item.
struct Chunk {
  IndexLists::Id offsets = 0;
  IndexLists::Id sizes = 0;
  ItemPlace item;
};

/// One key with its boxes: Metadata::chunks[first_chunk, +chunk_count).
struct StoredTensor {
  std::string name;
  DType dtype = DType::u8;
  std::vector<Index> shape;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunk_count = 0;
};

/// A key whose value is a pickled object (BytesStorageMetadata).
struct StoredObject {
  std::string name;
  ItemPlace item;
};

/// A step of the path that leads to a key's value in the nested state dict: a dict key or an index
/// of a list.
using PathStep = std::variant<std::string, std::int64_t>;
using Path = std::vector<PathStep>;

/// What `.metadata` says (docs/formats/dcp.md). No item was read.
struct Metadata {
  std::vector<StoredTensor> tensors;  ///< in the order of the file
  std::vector<Chunk> chunks;          ///< boxes of no volume beside others are left out
  IndexLists lists;                   ///< offsets and sizes of chunks
  std::vector<StoredObject> objects;
  std::vector<std::string> files;  ///< relative paths, each a plain name or names joined by '/',
                                   ///< never leading out of the folder
  std::optional<std::vector<std::pair<std::string, Path>>> planner_data;  ///< nothing: None
  /// Megatron's mcore_data: the shape that a flattened tensor has in the model
  /// (nd_reformulated_orig_global_shape), by key.
  std::vector<std::pair<std::string, std::vector<Index>>> flattened;

  std::span<Chunk const> chunks_of(StoredTensor const& tensor) const {
    return {chunks.data() + tensor.first_chunk, tensor.chunk_count};
  }
  std::span<Index const> offsets(Chunk const& chunk) const { return lists[chunk.offsets]; }
  std::span<Index const> sizes(Chunk const& chunk) const { return lists[chunk.sizes]; }
};

/// Reads a `.metadata` file in one pass: a pickle that is interpreted, never executed. It takes
/// about 200 bytes of memory per chunk, less than a tenth of what Python needs. The writers' plans
/// (all_local_plans), when they come last, are not read. Errors of kind source, with the path and
/// the byte or the key: damage, an opcode or class that has no place there, a chunk outside its
/// tensor or without item, compressed items (transform_descriptors), dtypes and layouts without a
/// counterpart here, absurd counts, names that leave the folder.
Metadata read_metadata(File const& file);

/// How much write_metadata shares: `compact` fetches from the memo what repeats (as small as
/// pickles get); `plain` has no memo at all.
enum class MetadataStyle { compact, plain };

/// The bytes of `.metadata` (pickle protocol 4) for these tensors, chunks and objects, with
/// planner_data as given (nothing: an empty dict), without storage_meta, plans or mcore_data.
/// torch 2.3 and later read it. Keys stand in the order of planner_data, those that it lacks behind
/// them. Equal input gives equal bytes. Pre: every chunk belongs to one tensor. A dtype that torch
/// lacks is an Error of kind source.
std::string write_metadata(Metadata const& metadata, MetadataStyle style = MetadataStyle::compact);

}  // namespace reshard::dcp
