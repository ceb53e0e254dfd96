#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/host_device.hpp"
#include "core/device/kernels/request_blocks.hpp"
#include "core/device/kernels/value_groups.hpp"
#include "core/quant/code_grid.hpp"

namespace reshard {

/// The input of the dequantise kernels: one descriptor for each request, those of one code format
/// in a launch. Offsets count from LaunchPlaces::from and ::to, and each is that of its tensor's
/// element `…_begin`.
struct DequantiseDescriptor {
  std::uint64_t first_block = 0;
  std::uint64_t to = 0;
  std::uint64_t codes = 0;
  std::uint64_t scales = 0;
  std::uint64_t seconds = 0;
  std::uint64_t zero_points = 0;
  std::int64_t codes_begin = 0;
  std::int64_t scales_begin = 0;
  std::int64_t seconds_begin = 0;
  std::int64_t zero_points_begin = 0;
  std::int64_t first_row = 0;
  std::int64_t first_column = 0;
  std::int64_t columns = 0;  ///< of the part
  std::uint64_t count = 0;   ///< elements of the part
  quant::CodeGrid grid;
};

/// The kernel of one code format.
template <quant::CodeFormat format>
struct DequantiseKernel {
  static constexpr unsigned group_size = 8;

  RESHARD_HOST_DEVICE static void run(DequantiseDescriptor const& request,
                                      LaunchPlaces const& places, std::uint64_t block,
                                      unsigned thread) {
    std::byte* const to = places.to + request.to;
    quant::StoredParts const stored = stored_parts(request, places.from);
    for (unsigned round = 0; round < groups_per_thread; ++round) {
      ElementGroup const group =
          group_of<2>(group_number(block - request.first_block, round, thread), request.count, to);
      if (group.begin >= group.end) break;
      run_group(request, stored, group, to + 2 * group.begin);
    }
  }

 private:
  RESHARD_HOST_DEVICE static quant::StoredParts stored_parts(DequantiseDescriptor const& request,
                                                             std::byte const* from) {
    return {{from + request.codes, request.codes_begin},
            {from + request.scales, request.scales_begin},
            {from + request.seconds, request.seconds_begin},
            {from + request.zero_points, request.zero_points_begin},
            {},
            {}};
  }

  /// Bits of a code; a compile-time constant if the format fixes them.
  RESHARD_HOST_DEVICE static unsigned bits_of(quant::CodeGrid const& grid) {
    if constexpr (format == quant::CodeFormat::e2m1) return 4;
    if constexpr (format == quant::CodeFormat::integer) return static_cast<unsigned>(grid.bits);
    return 8;
  }

  /// The elements of a group, stretch by stretch: a stretch lies in one row and in one block.
  RESHARD_HOST_DEVICE static void run_group(DequantiseDescriptor const& request,
                                            quant::StoredParts const& stored,
                                            ElementGroup const& group, std::byte* to) {
    quant::CodeGrid const& grid = request.grid;
    std::int64_t const first = static_cast<std::int64_t>(group.begin);
    std::int64_t row = request.first_row + first / request.columns;
    std::int64_t column = request.first_column + first % request.columns;
    auto left = static_cast<std::int64_t>(group.end - group.begin);
    while (left > 0) {
      std::int64_t const block_end = (column / grid.block_columns + 1) * grid.block_columns;
      std::int64_t const row_end = request.first_column + request.columns;
      std::int64_t const end = block_end < row_end ? block_end : row_end;
      std::int64_t const count = end - column < left ? end - column : left;
      quant::Factors const factors =
          quant::factors_of(grid, stored, row, column, quant::scale_index(grid, row, column));
      std::uint64_t const codes =
          load_codes(grid, stored.codes, row, column, static_cast<unsigned>(count));
      if (group.whole && count == group_size)
        write_whole(grid, codes, factors, to);
      else
        write_part(grid, codes, factors, to, static_cast<unsigned>(count));
      to += 2 * count;
      left -= count;
      column += count;
      if (column != row_end) continue;
      column = request.first_column;
      ++row;
    }
  }

  /// `count` codes of a row, the first in the lowest bits: 8 bytes at most, wherever in a byte they
  /// begin (a code of 8 bits begins with one).
  RESHARD_HOST_DEVICE static std::uint64_t load_codes(quant::CodeGrid const& grid,
                                                      quant::TensorPart const& codes,
                                                      std::int64_t row, std::int64_t column,
                                                      unsigned count) {
    unsigned const bits = bits_of(grid);
    std::int64_t const first_bit = column * static_cast<std::int64_t>(bits);
    std::byte const* const from =
        codes.bytes + (row * grid.row_bytes - codes.begin + first_bit / 8);
    auto const shift = static_cast<unsigned>(first_bit % 8);
    unsigned const bytes = (shift + count * bits + 7) / 8;
    auto const place = reinterpret_cast<std::uintptr_t>(from);
    if (bytes == 8 && place % 8 == 0) return load_word<std::uint64_t>(from) >> shift;
    if (bytes == 4 && place % 4 == 0) return std::uint64_t{load_word<std::uint32_t>(from)} >> shift;
    std::uint64_t window = 0;
    for (unsigned byte = 0; byte < bytes; ++byte)
      window |= static_cast<std::uint64_t>(from[byte]) << 8 * byte;
    return window >> shift;
  }

  RESHARD_HOST_DEVICE static std::uint16_t element(quant::CodeGrid const& grid, std::uint64_t codes,
                                                   unsigned i, quant::Factors const& factors) {
    unsigned const bits = bits_of(grid);
    auto const code = static_cast<std::uint8_t>(codes >> i * bits & ((1U << bits) - 1));
    return quant::dequantised(quant::value_of_code(format, grid.bits, code), factors);
  }

  RESHARD_HOST_DEVICE static void write_whole(quant::CodeGrid const& grid, std::uint64_t codes,
                                              quant::Factors const& factors, std::byte* to) {
    Quad word;
    unrolled<4>([&](auto i) {
      word.part[i] = element(grid, codes, 2 * i, factors) |
                     static_cast<std::uint32_t>(element(grid, codes, 2 * i + 1, factors)) << 16U;
    });
    store_word(to, word);
  }

  RESHARD_HOST_DEVICE static void write_part(quant::CodeGrid const& grid, std::uint64_t codes,
                                             quant::Factors const& factors, std::byte* to,
                                             unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      std::uint16_t const code = element(grid, codes, i, factors);
      std::memcpy(to + 2 * i, &code, 2);
    }
  }
};

/// Calls run(DequantiseKernel<…>{}) of a variant, which is the number of the code format; false
/// when there is none.
template <class Run>
bool visit_dequantise(unsigned variant, Run&& run) {
  using quant::CodeFormat;
  switch (static_cast<CodeFormat>(variant)) {
    case CodeFormat::e4m3: return run(DequantiseKernel<CodeFormat::e4m3>{}), true;
    case CodeFormat::e5m2: return run(DequantiseKernel<CodeFormat::e5m2>{}), true;
    case CodeFormat::i8: return run(DequantiseKernel<CodeFormat::i8>{}), true;
    case CodeFormat::e2m1: return run(DequantiseKernel<CodeFormat::e2m1>{}), true;
    case CodeFormat::integer: return run(DequantiseKernel<CodeFormat::integer>{}), true;
    case CodeFormat::i4: break;  // is_by_columns()
  }
  return false;
}

}  // namespace reshard
