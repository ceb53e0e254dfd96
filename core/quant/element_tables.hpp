#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/quant/code_grid.hpp"

namespace reshard::quant {

/// Values of the codes of a block, BF16 by code, kept for the next block with the same factors: the
/// same block of the next row, or another one whose 8-bit scale is the same. A lookup costs a
/// fraction of a product that is rounded.
class ElementTables {
 public:
  /// No tables are kept where to make them costs more than they save.
  explicit ElementTables(CodeGrid const& grid);

  bool kept() const { return !keys_.empty(); }
  /// From here on blocks have this second scale.
  void begin_second(double second);
  /// The table of the block whose scale_index() is `scale`, and `scales` holds it: `factors()` are
  /// those of the block, and `fill(factors, table)` makes its elements. The result is valid until
  /// the next call. Pre: kept().
  template <class FactorsOf, class Fill>
  std::span<std::uint16_t const> of(std::int64_t scale, TensorPart const& scales,
                                    FactorsOf const& factors_of, Fill const& fill) {
    std::size_t const slot = by_scale_code_
                                 ? static_cast<std::size_t>(scales.bytes[scale - scales.begin])
                                 : static_cast<std::size_t>(scale) % keys_.size();
    auto const table = std::span(elements_).subspan(slot * codes_, codes_);
    std::optional<Key>& held = keys_[slot];
    if (by_scale_code_ && held) return table;
    Factors const factors = factors_of();
    Key const key = key_of(factors);
    if (held != key) {
      fill(factors, table);
      held = key;
    }
    return table;
  }

 private:
  /// The factors of a table, as bits: 0 and -0 make different elements.
  struct Key {
    std::uint64_t scale = 0;
    std::uint64_t zero = 0;
    friend bool operator==(Key const&, Key const&) = default;
  };
  static Key key_of(Factors const& factors);

  std::size_t codes_ = 0;
  bool by_scale_code_ = false;            ///< a slot is the code of the scale
  std::uint64_t second_ = 0;              ///< as bits
  std::vector<std::optional<Key>> keys_;  ///< of each slot with a table
  std::vector<std::uint16_t> elements_;   ///< as many as there are codes in each slot
};

}  // namespace reshard::quant
