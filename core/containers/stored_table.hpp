#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/integers.hpp"
#include "core/base/shared_shape.hpp"
#include "core/base/shared_text.hpp"
#include "core/containers/stored_chunks.hpp"

namespace reshard {

/// One stored tensor with its boxes: StoredTable::chunks[first_chunk, +chunk_count). What is stored
/// whole has one.
struct StoredTensor {
  SharedText name;
  DType dtype = DType::u8;
  SharedShape shape;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunk_count = 0;
};

/// A value that is not a tensor, as bytes (DCP's BytesStorageMetadata).
struct StoredObject {
  std::string name;
  ItemPlace item;
};

/// Stored tensors and objects as headers tell of them: 24 bytes for each tensor and 16 for each
/// box, beside names, shapes and boxes, of which each different one is held once.
struct StoredTable {
  std::vector<StoredTensor> tensors;
  StoredChunks chunks;
  IndexLists lists;  ///< offsets and sizes of chunks
  std::vector<StoredObject> objects;
  /// Of each chunk: its first element, from the start of its file. Empty: every item begins with
  /// its first element, or where items have heads (DCP), these were not read yet.
  std::vector<std::uint64_t> payload_offsets;
  /// Of the chunks that are not row-major: in elements, one for each dimension.
  std::map<std::size_t, std::vector<Index>> strides;
  /// The dtype to which values are rounded (nearest even) while they are read, by tensor.
  std::map<std::size_t, DType> rounded;

  StoredChunks::Run chunks_of(StoredTensor const& tensor) const {
    return {chunks, tensor.first_chunk, tensor.chunk_count};
  }
  /// The first element of a chunk, from the start of its file.
  std::uint64_t payload_offset_bytes(std::size_t chunk) const {
    return payload_offsets.empty() ? chunks[chunk].item.offset_bytes : payload_offsets[chunk];
  }
  std::span<Index const> offsets(StoredChunk const& chunk) const { return lists[chunk.offsets]; }
  std::span<Index const> sizes(StoredChunk const& chunk) const { return lists[chunk.sizes]; }

  /// Adds a tensor that is stored whole. `offset_bytes`: its first element. `strides` are empty for
  /// a row-major one.
  void add_whole(SharedText name, DType dtype, SharedShape shape, ItemPlace const& item,
                 std::vector<Index> tensor_strides = {});
  /// Appends tensors [first, +count), each stored whole, again as those of another file that holds
  /// the same at the same places.
  void repeat(std::size_t first, std::size_t count, std::uint32_t file);
  /// Lets go of everything but the objects.
  void forget_tensors();
  /// Room for so many more tensors, each stored whole.
  void reserve(std::size_t more);
};

}  // namespace reshard
