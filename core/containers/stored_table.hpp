#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/integers.hpp"
#include "core/base/shared_text.hpp"
#include "core/containers/id_table.hpp"

namespace reshard {

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

/// The bytes of one stored item: [offset_bytes, +size_bytes) of a file, by its number.
struct ItemPlace {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  friend bool operator==(ItemPlace const&, ItemPlace const&) = default;
};

/// A chunk: a box of a tensor, rows [offset, offset + size) of every dimension, and its item.
struct StoredChunk {
  IndexLists::Id offsets = 0;
  IndexLists::Id sizes = 0;
  ItemPlace item;
};

/// One stored tensor with its boxes: StoredTable::chunks[first_chunk, +chunk_count). What is stored
/// whole has one.
struct StoredTensor {
  SharedText name;
  DType dtype = DType::u8;
  std::vector<Index> shape;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunk_count = 0;
};

/// A value that is not a tensor, as bytes (DCP's BytesStorageMetadata).
struct StoredObject {
  std::string name;
  ItemPlace item;
};

/// Stored tensors and objects as headers tell of them, about 200 bytes for each box.
struct StoredTable {
  std::vector<StoredTensor> tensors;
  std::vector<StoredChunk> chunks;
  IndexLists lists;  ///< offsets and sizes of chunks
  std::vector<StoredObject> objects;
  /// Of each chunk: its first element, from the start of its file. Empty while that is not known.
  std::vector<std::uint64_t> payload_offset_bytes;
  /// Of the chunks that are not row-major: in elements, one for each dimension.
  std::map<std::size_t, std::vector<Index>> strides;
  /// The dtype to which values are rounded (nearest even) while they are read, by tensor.
  std::map<std::size_t, DType> rounded;

  std::span<StoredChunk const> chunks_of(StoredTensor const& tensor) const {
    return {chunks.data() + tensor.first_chunk, tensor.chunk_count};
  }
  std::span<Index const> offsets(StoredChunk const& chunk) const { return lists[chunk.offsets]; }
  std::span<Index const> sizes(StoredChunk const& chunk) const { return lists[chunk.sizes]; }

  /// Adds a tensor that is stored whole. `offset_bytes`: its first element. `strides` are empty for
  /// a row-major one.
  void add_whole(SharedText name, DType dtype, std::vector<Index> shape, ItemPlace const& item,
                 std::vector<Index> tensor_strides = {});
};

}  // namespace reshard
