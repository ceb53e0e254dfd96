#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/files/file.hpp"
#include "core/base/tables/integers.hpp"
#include "core/containers/dcp/metadata/metadata.hpp"

namespace reshard::dcp {

/// The tensor of an item, which is one complete torch.save archive inside a .distcp file.
struct ItemTensor {
  std::uint64_t payload_offset_bytes =
      0;                       ///< of the tensor's first element, from the start of the file
  std::vector<Index> strides;  ///< in elements; empty: row-major
  std::uint64_t storage_offset_bytes =
      0;  ///< of the record that contains the elements, from the start of the file
  std::uint64_t storage_bytes = 0;
  bool object = false;  ///< of a class of torchao: without plain elements
};

/// What becomes of an item with a quantised tensor of torchao, in an object of its classes.
enum class TorchaoTensors { refused, objects };

/// Finds the elements of the tensor item at `place` of `file`; one read of a few KiB for an item as
/// torch writes it, else the archive's complete directory. Errors of kind source with path and
/// offset: damage, an item that is not a plain tensor, a dtype or shape other than the metadata's
/// (both values are named), a storage that lacks elements, compressed or encrypted records.
ItemTensor read_tensor_item(File const& file, ItemPlace const& place, DType dtype,
                            std::span<Index const> shape, std::string_view key,
                            TorchaoTensors torchao = TorchaoTensors::refused);

/// An item that holds no plain tensor.
struct ItemObject {
  std::string text;      ///< "a tensor of class torchao.quantization.Int8Tensor"
  bool torchao = false;  ///< a quantised tensor of torchao
};
/// The object in an item; nullopt for a plain tensor. The same errors for a damaged item.
std::optional<ItemObject> object_in_item(File const& file, ItemPlace const& place);

/// The byte layout of an item of a contiguous tensor that we write, by dtype and shape.
struct ItemLayout {
  std::uint64_t payload_offset_bytes = 0;  ///< from the start of the item; a multiple of 64
  std::uint64_t payload_bytes = 0;
  std::uint64_t size_bytes = 0;
};
ItemLayout item_layout(DType dtype, std::span<Index const> shape);

/// The bytes before and after the payload of such an item, identical to those of torch.save
/// (docs/formats/torch-file.md).
struct ItemFrame {
  std::string head;
  std::string tail;
};
ItemFrame item_frame(DType dtype, std::span<Index const> shape, std::uint32_t payload_crc32);

}  // namespace reshard::dcp
