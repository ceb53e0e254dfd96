#include "core/device/strided_copy.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/device/copy_shape.hpp"

namespace reshard {
namespace {

// A tile of a transpose reads and writes lines of this many bytes: complete cache lines at any
// alignment, and a tile of single bytes (16 KiB) still fits a first-level cache.
constexpr std::size_t tile_line_bytes = 128;

// Runs of at most this many bytes are copied with fixed-size moves; a call of memcpy for each would
// cost as much as the bytes.
constexpr std::uint64_t small_run_bytes = 128;

// Runs of at most this many bytes are copied in the order that walks memory in the smallest steps;
// longer ones keep the order of the dimensions.
constexpr std::uint64_t reordered_run_bytes = 256;

/// The index of the dimension that walks the source (or the target) in the smallest steps.
std::size_t finest(std::vector<ByteDim> const& dims, std::int64_t ByteDim::*stride) {
  auto const by_step = [stride](ByteDim const& a, ByteDim const& b) {
    return std::abs(a.*stride) < std::abs(b.*stride);
  };
  return static_cast<std::size_t>(std::min_element(dims.begin(), dims.end(), by_step) -
                                  dims.begin());
}

/// Moves the dimensions of the inner loops to the end: `rows` walks the source finely, the last one
/// (`columns`) the target. With one finest dimension for both it is the last, and rows is the one
/// before it as it came.
void order_dims(std::vector<ByteDim>& dims) {
  std::size_t const columns = finest(dims, &ByteDim::to_stride);
  std::size_t const rows = finest(dims, &ByteDim::from_stride);
  ByteDim const column = dims[columns];
  ByteDim const row = dims[rows];
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(std::max(columns, rows)));
  if (columns != rows) {
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(std::min(columns, rows)));
    dims.push_back(row);
  }
  dims.push_back(column);
}

template <std::size_t Bytes>
struct FixedRun {
  void operator()(std::byte const* from, std::byte* to) const { std::memcpy(to, from, Bytes); }
};

/// 16 bytes and more, in steps of 16; the last step overlaps the one before it.
struct SmallRun {
  std::uint64_t bytes;
  void operator()(std::byte const* from, std::byte* to) const {
    for (std::uint64_t done = 0; done + 16 <= bytes; done += 16)
      std::memcpy(to + done, from + done, 16);
    std::memcpy(to + bytes - 16, from + bytes - 16, 16);
  }
};

struct AnyRun {
  std::uint64_t bytes;
  void operator()(std::byte const* from, std::byte* to) const { std::memcpy(to, from, bytes); }
};

template <class Run>
void copy_line(std::byte const* from, std::byte* to, ByteDim const& dim, Run run) {
  for (std::uint64_t i = 0; i < dim.count; ++i)
    run(from + static_cast<std::int64_t>(i) * dim.from_stride,
        to + static_cast<std::int64_t>(i) * dim.to_stride);
}

/// Copies runs (row, column) of a tile through a buffer: straight between two places whose strides
/// are a power of two, the lines of a tile would fall into the same few cache sets and drive each
/// other out.
template <std::size_t Bytes, std::size_t Side>
void copy_tile(std::byte const* from, std::byte* to, ByteDim const& rows, ByteDim const& columns,
               std::size_t row_count, std::size_t column_count) {
  std::array<std::array<std::array<std::byte, Bytes>, Side>, Side> tile;
  for (std::size_t c = 0; c < column_count; ++c)
    for (std::size_t r = 0; r < row_count; ++r)
      std::memcpy(&tile[r][c],
                  from + static_cast<std::int64_t>(r) * rows.from_stride +
                      static_cast<std::int64_t>(c) * columns.from_stride,
                  Bytes);
  bool const dense = columns.to_stride == static_cast<std::int64_t>(Bytes);
  for (std::size_t r = 0; r < row_count; ++r) {
    std::byte* const line = to + static_cast<std::int64_t>(r) * rows.to_stride;
    if (dense && column_count == Side)
      std::memcpy(line, tile[r].data(), Side * Bytes);
    else
      for (std::size_t c = 0; c < column_count; ++c)
        std::memcpy(line + static_cast<std::int64_t>(c) * columns.to_stride, &tile[r][c], Bytes);
  }
}

template <std::size_t Bytes>
void copy_tiled(std::byte const* from, std::byte* to, ByteDim const& rows, ByteDim const& columns) {
  constexpr std::size_t side = tile_line_bytes / Bytes;
  for (std::uint64_t r = 0; r < rows.count; r += side)
    for (std::uint64_t c = 0; c < columns.count; c += side) {
      auto const row = static_cast<std::int64_t>(r);
      auto const column = static_cast<std::int64_t>(c);
      copy_tile<Bytes, side>(from + row * rows.from_stride + column * columns.from_stride,
                             to + row * rows.to_stride + column * columns.to_stride, rows, columns,
                             std::min<std::uint64_t>(side, rows.count - r),
                             std::min<std::uint64_t>(side, columns.count - c));
    }
}

bool transposes(std::span<ByteDim const> dims) {
  return dims.size() >= 2 &&
         std::abs(dims[dims.size() - 2].from_stride) < std::abs(dims.back().from_stride);
}

std::uint64_t run_count(std::span<ByteDim const> dims) { return copied_bytes(1, dims); }

template <class Run>
void copy_runs(std::byte const* from, std::byte* to, std::span<ByteDim const> dims, Run run) {
  auto const outer = dims.first(dims.size() - 1);
  for (std::uint64_t i = 0; i < run_count(outer); ++i) {
    RunPlace const place = place_of_run(i, outer.data(), outer.size());
    copy_line(from + place.from, to + place.to, dims.back(), run);
  }
}

template <std::size_t Bytes>
void copy_fixed(std::byte const* from, std::byte* to, std::span<ByteDim const> dims) {
  if (!transposes(dims)) return copy_runs(from, to, dims, FixedRun<Bytes>{});
  auto const outer = dims.first(dims.size() - 2);
  for (std::uint64_t i = 0; i < run_count(outer); ++i) {
    RunPlace const place = place_of_run(i, outer.data(), outer.size());
    copy_tiled<Bytes>(from + place.from, to + place.to, dims[dims.size() - 2], dims.back());
  }
}

}  // namespace

std::uint64_t copied_bytes(std::uint64_t run_bytes, std::span<ByteDim const> dims) {
  std::uint64_t bytes = run_bytes;
  for (ByteDim const& dim : dims) bytes *= dim.count;
  return bytes;
}

void copy_strided(std::byte const* from, std::byte* to, std::uint64_t run_bytes,
                  std::span<ByteDim const> dims) {
  if (copied_bytes(run_bytes, dims) == 0) return;
  CopyShape shape = simplified(run_bytes, dims);
  if (shape.dims.empty()) {
    std::memcpy(to, from, shape.run_bytes);
    return;
  }
  if (shape.run_bytes <= reordered_run_bytes) order_dims(shape.dims);
  switch (shape.run_bytes) {
    case 1: return copy_fixed<1>(from, to, shape.dims);
    case 2: return copy_fixed<2>(from, to, shape.dims);
    case 4: return copy_fixed<4>(from, to, shape.dims);
    case 8: return copy_fixed<8>(from, to, shape.dims);
    case 16: return copy_fixed<16>(from, to, shape.dims);
    case 32: return copy_fixed<32>(from, to, shape.dims);
    case 64: return copy_fixed<64>(from, to, shape.dims);
    default: break;
  }
  if (shape.run_bytes >= 16 && shape.run_bytes <= small_run_bytes)
    return copy_runs(from, to, shape.dims, SmallRun{shape.run_bytes});
  copy_runs(from, to, shape.dims, AnyRun{shape.run_bytes});
}

}  // namespace reshard
