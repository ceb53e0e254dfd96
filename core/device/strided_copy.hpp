#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/host_device.hpp"
#include "core/base/tables/byte_dim.hpp"

namespace reshard {

/// The beginning of a run of a strided copy, in bytes from the two starting addresses.
struct RunPlace {
  std::int64_t from = 0;
  std::int64_t to = 0;
};

/// Pre: every count is at least 1. Runs count with the last dimension fastest; `run` is below the
/// product of the counts.
///
///   dims {2, from 100, to 8}, {4, from 10, to 2}; run 5 is index (1, 1): from 110, to 10
RESHARD_HOST_DEVICE inline RunPlace place_of_run(std::uint64_t run, ByteDim const* dims,
                                                 std::size_t dim_count) {
  RunPlace place;
  for (std::size_t d = dim_count; d-- > 0;) {
    auto const index = static_cast<std::int64_t>(run % dims[d].count);
    run /= dims[d].count;
    place.from += index * dims[d].from_stride;
    place.to += index * dims[d].to_stride;
  }
  return place;
}

/// Copies runs of `run_bytes` bytes from `from` to `to`, once for every index tuple of `dims`
/// (outermost first). Strides may be zero or negative.
///
///   a 3 x 5 float matrix, transposed: run_bytes 4, dims {3, 20, 4}, {5, 4, 12}
///
/// Pre: no byte that is read is written; no byte is written twice.
void copy_strided(std::byte const* from, std::byte* to, std::uint64_t run_bytes,
                  std::span<ByteDim const> dims);

/// The number of bytes that copy_strided() copies.
std::uint64_t copied_bytes(std::uint64_t run_bytes, std::span<ByteDim const> dims);

}  // namespace reshard
