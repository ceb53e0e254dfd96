#include "core/quant/element_tables.hpp"

#include <algorithm>
#include <bit>

namespace reshard::quant {
namespace {

constexpr std::size_t scale_codes = 256;       // of an 8-bit scale
constexpr std::int64_t most_slots = 1024;      // as many tables as a second-level cache holds
constexpr std::int64_t elements_for_code = 2;  // of a block

bool is_by_scale_code(CodeGrid const& grid) {
  return bits(grid.scale_dtype) == 8 && grid.zero_points == ZeroPoints::none;
}

/// How many tables are kept; none where single elements are cheaper.
std::size_t slots_of(CodeGrid const& grid) {
  if (is_by_scale_code(grid)) return scale_codes;
  if (are_integers(grid.codes)) return 0;  // integers become products faster than they are found
  std::int64_t const elements =
      std::min(grid.block_rows, grid.rows) * std::min(grid.block_columns, grid.columns);
  std::size_t const fewest = grid.bits < 8 ? 1 : 0;  // few codes are always worth a table
  if (elements < elements_for_code << grid.bits) return fewest;
  if (grid.block_rows == 1) return 1;
  return grid.scale_columns <= most_slots ? static_cast<std::size_t>(grid.scale_columns) : fewest;
}

}  // namespace

ElementTables::ElementTables(CodeGrid const& grid)
    : codes_(std::size_t{1} << static_cast<unsigned>(grid.bits)),
      by_scale_code_(is_by_scale_code(grid)),
      keys_(slots_of(grid)),
      elements_(keys_.size() * codes_) {}

void ElementTables::begin_second(double second) {
  auto const bits = std::bit_cast<std::uint64_t>(second);
  if (by_scale_code_ && bits != second_) std::ranges::fill(keys_, std::nullopt);
  second_ = bits;
}

ElementTables::Key ElementTables::key_of(Factors const& factors) {
  return {std::bit_cast<std::uint64_t>(factors.scale), std::bit_cast<std::uint64_t>(factors.zero)};
}

}  // namespace reshard::quant
