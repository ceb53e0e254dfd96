#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/byte_dim.hpp"

namespace reshard {

/// strided_digest() of F32 values that are rounded to `to` (BF16 or F16) first. All byte counts are
/// those of the F32 values; the tensor of rounded values has half of them. `block` is working
/// memory: it grows to half of the bytes.
std::uint64_t rounded_digest(DType to, std::byte const* from, std::uint64_t run_bytes,
                             std::span<ByteDim const> dims, std::uint64_t after_bytes,
                             std::vector<std::byte>& block);

/// A value that is not a second moment: negative, NaN or infinite.
struct WrongMoment {
  float value = 0;
  std::uint64_t at = 0;  ///< its byte offset in the tensor, counted from that of the first run
};

/// The first F32 value, in the order of `dims`, that is not a second moment; nullopt if there is
/// none.
std::optional<WrongMoment> wrong_moment(std::byte const* from, std::uint64_t run_bytes,
                                        std::span<ByteDim const> dims);

}  // namespace reshard
