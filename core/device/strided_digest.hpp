#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/tables/byte_dim.hpp"
#include "core/device/copy_shape.hpp"

namespace reshard {

/// The share of a piece in the CRC-64 (core/base/hash/crc64.hpp) of a logical tensor's row-major
/// bytes; the xor of the shares of all pieces is the CRC. Runs of `run_bytes` bytes lie at `from` +
/// from_stride · index and are at to_stride · index from the run of index 0, after which the tensor
/// has `after_bytes` bytes.
///
///   column 2 of a 3 x 5 float matrix: run_bytes 4, dims {3, its row stride, 20}, after_bytes 60 -
///   8 - 4
///
/// Pre: every run lies within the tensor.
std::uint64_t strided_digest(std::byte const* from, std::uint64_t run_bytes,
                             std::span<ByteDim const> dims, std::uint64_t after_bytes);

/// The runs of a piece, joined where they continue each other, in an order that walks the memory
/// they lie in by small steps; run_bytes is 0 when there are none.
CopyShape digest_shape(std::uint64_t run_bytes, std::span<ByteDim const> dims);

}  // namespace reshard
