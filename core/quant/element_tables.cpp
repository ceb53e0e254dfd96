#include "core/quant/element_tables.hpp"

#include <algorithm>
#include <bit>

namespace reshard::quant {
namespace {

constexpr std::size_t scale_codes = 256;       // of an 8-bit scale
constexpr std::int64_t most_slots = 1024;      // as many tables as a second-level cache holds
constexpr std::int64_t elements_for_code = 2;  // of a block

bool is_scale_code(CodeGrid const& grid) { return bits(grid.scale_dtype) == 8; }

/// How many tables are kept; none where single elements are cheaper.
std::size_t slots_of(CodeGrid const& grid) {
  if (is_scale_code(grid)) return scale_codes;
  std::int64_t const elements =
      std::min(grid.block_rows, grid.rows) * std::min(grid.block_columns, grid.columns);
  std::size_t const fewest = grid.bits < 8 ? 1 : 0;  // few codes are always worth a table
  if (elements < elements_for_code << grid.bits) return fewest;
  if (grid.block_rows == 1) return 1;
  return grid.scale_columns <= most_slots ? static_cast<std::size_t>(grid.scale_columns) : fewest;
}

std::size_t slot_of(CodeGrid const& grid, std::int64_t scale, TensorPart const& scales,
                    std::size_t slots) {
  if (is_scale_code(grid)) return static_cast<std::size_t>(scales.bytes[scale - scales.begin]);
  return static_cast<std::size_t>(scale) % slots;
}

}  // namespace

bool keeps_tables(CodeGrid const& grid) { return slots_of(grid) > 0; }

std::span<std::uint16_t const> ElementTables::of(CodeGrid const& grid,
                                                 std::span<double const> values,
                                                 Factors const& factors, std::int64_t scale,
                                                 TensorPart const& scales) {
  std::size_t const codes = std::size_t{1} << static_cast<unsigned>(grid.bits);
  if (keys_.empty()) {
    keys_.resize(slots_of(grid));
    elements_.resize(keys_.size() * codes);
    if (keys_.empty()) return {};
  }
  std::size_t const slot = slot_of(grid, scale, scales, keys_.size());
  auto const table = std::span(elements_).subspan(slot * codes, codes);
  Key const key = {std::bit_cast<std::uint64_t>(factors.scale),
                   std::bit_cast<std::uint64_t>(factors.divisor),
                   std::bit_cast<std::uint64_t>(factors.zero)};
  if (keys_[slot] == key) return table;
  bool const divide = grid.second == SecondScale::divided_by;
  for (std::size_t code = 0; code < codes; ++code)
    table[code] = dequantised(values[code], factors, divide);
  keys_[slot] = key;
  return table;
}

}  // namespace reshard::quant
