#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/containers/torch/pickle.hpp"

namespace reshard::dcp {

/// A tensor item as its first bytes tell it. Offsets count from the start of the item.
struct ItemHead {
  pickle::TensorRef tensor;
  std::uint64_t payload_offset_bytes = 0;  ///< of the storage
  std::uint64_t storage_bytes = 0;
};

/// Reads the beginning of an item. Nothing when it is not, byte for byte up to the payload, what
/// torch.save writes for one plain tensor, when `head` ends before the payload begins, or when such
/// an item would not have `item_bytes`: then the archive's directory has to say what it is.
std::optional<ItemHead> read_item_head(std::span<std::byte const> head, std::uint64_t item_bytes);

}  // namespace reshard::dcp
