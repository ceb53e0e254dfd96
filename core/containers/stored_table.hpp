#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/tables/shared_shape.hpp"
#include "core/base/text/shared_text.hpp"
#include "core/containers/stored_chunks.hpp"
#include "core/containers/stored_tensors.hpp"

namespace reshard {

/// The description in `.metadata` of a box of a tensor that is an object of another class.
struct ObjectTensor {
  DType dtype = DType::u8;
  SharedShape shape;           ///< of the complete tensor
  std::vector<Index> offsets;  ///< of the box
  std::vector<Index> sizes;
};

/// A value that is not a tensor, as bytes (DCP's BytesStorageMetadata), or a box of a tensor whose
/// class only its own program reads; boxes of one such tensor are next to each other.
struct StoredObject {
  std::string name;
  ItemPlace item;
  std::optional<ObjectTensor> tensor = {};
};

/// Stored tensors and objects by their headers: 24 bytes at most for each tensor and 16 for each
/// box, in addition to names, shapes and boxes, of which each distinct one is stored once.
struct StoredTable {
  StoredTensors tensors;
  StoredChunks chunks;
  IndexLists lists;  ///< offsets and sizes of chunks
  std::vector<StoredObject> objects;
  /// The offset of each chunk's first element, from the start of its file. Empty: every item begins
  /// with its first element, or the heads of items (DCP) were not read yet.
  std::vector<std::uint64_t> payload_offsets;
  /// The strides of chunks that are not row-major: in elements, one for each dimension.
  std::map<std::size_t, std::vector<Index>> strides;
  /// The dtype to which values are rounded (nearest even) while they are read, by tensor.
  std::map<std::size_t, DType> rounded;

  StoredChunks::Run chunks_of(StoredTensor const& tensor) const {
    return {chunks, tensor.first_chunk, tensor.chunk_count};
  }
  /// The offset of a chunk's first element, from the start of its file.
  std::uint64_t payload_offset_bytes(std::size_t chunk) const {
    return payload_offsets.empty() ? chunks[chunk].item.offset_bytes : payload_offsets[chunk];
  }
  std::span<Index const> offsets(StoredChunk const& chunk) const { return lists[chunk.offsets]; }
  std::span<Index const> sizes(StoredChunk const& chunk) const { return lists[chunk.sizes]; }

  /// Adds a tensor that is not cut. `tensor_strides` are empty for a row-major one.
  void add_whole(SharedText name, DType dtype, SharedShape shape, ItemPlace const& item,
                 std::vector<Index> tensor_strides = {});
  /// Appends tensors [first, +count), each of one chunk, once more for another file with the same
  /// tensors at the same offsets.
  void repeat(std::size_t first, std::size_t count, std::uint32_t file);
  /// Clears everything but the objects.
  void forget_tensors();
  /// Reserves room for `more` tensors of one chunk each.
  void reserve(std::size_t more);
};

/// The first item of the tensor that is shorter than its elements: it holds something else.
/// nullopt where all have room for them.
std::optional<ItemPlace> short_item(StoredTable const& stored, StoredTensor const& tensor);

}  // namespace reshard
