#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard::dcp {

/// The description of a tensor item in its first bytes. Offsets count from the start of the item.
struct ItemHead {
  pickle::TensorRef tensor;
  std::uint64_t payload_offset_bytes = 0;  ///< of the storage
  std::uint64_t storage_bytes = 0;
};

/// Reads the beginning of an item. nullopt if its bytes before the payload are not those that
/// torch.save writes for one plain tensor, if `head` ends before the payload, or if such an item
/// would not have `item_bytes`: then the archive's directory has to be read.
std::optional<ItemHead> read_item_head(std::span<std::byte const> head, std::uint64_t item_bytes);

}  // namespace reshard::dcp
