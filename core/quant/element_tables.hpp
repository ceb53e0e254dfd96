#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/quant/code_grid.hpp"

namespace reshard::quant {

/// Whether blocks of a grid are worth tables; else each element is computed, which takes several
/// times as long.
bool keeps_tables(CodeGrid const& grid);

/// What the codes of a block become, BF16 by code, kept for the next block with the same factors:
/// the same block of the next row, or another one whose 8-bit scale is the same. A lookup costs a
/// fraction of a product that is rounded.
class ElementTables {
 public:
  /// The element of each code of a block, or nothing where to make a table costs more than it
  /// saves. `values` are those of all codes; grid and values are the same in all calls. `scale` is
  /// the scale_index() of the block, and `scales` holds it. The result is valid until the next
  /// call.
  std::span<std::uint16_t const> of(CodeGrid const& grid, std::span<double const> values,
                                    Factors const& factors, std::int64_t scale,
                                    TensorPart const& scales);

 private:
  /// The factors of a table, as bits: 0 and -0 make different elements.
  struct Key {
    std::uint64_t scale = 0;
    std::uint64_t divisor = 0;
    std::uint64_t zero = 0;
    friend bool operator==(Key const&, Key const&) = default;
  };

  std::vector<std::optional<Key>> keys_;  ///< of each slot with a table
  std::vector<std::uint16_t> elements_;   ///< as many as there are codes in each slot
};

}  // namespace reshard::quant
