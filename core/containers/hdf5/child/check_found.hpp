#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/containers/hdf5/container.hpp"

namespace reshard::hdf5 {

/// The most dimensions of a dataset (H5S_MAX_RANK).
inline constexpr std::size_t largest_rank = 32;

/// The size of a tensor in bytes; nullopt if the product overflows 2^61, an extent is below 0, or
/// elements narrower than a byte do not fill the bytes of the last dimension.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<Index const> shape);

/// "[2, 3]".
std::string shown_shape(std::span<Index const> shape);

/// Checks every rule of docs/formats/hdf5.md, 4 that needs no libhdf5, and sorts the datasets by
/// offset. Errors of kind source.
void check_found(Found& found, std::uint64_t file_bytes, std::string_view place);

}  // namespace reshard::hdf5
