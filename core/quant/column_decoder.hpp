#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/quant/code_grid.hpp"
#include "core/quant/scheme.hpp"

namespace reshard::quant {

/// Decodes forms in which each column of a row has factors of its own, or codes do not lie along
/// the rows (is_by_columns()), with the arithmetic of a Dequantiser: a product with a factor of a
/// column or the reciprocal of the divisor is one more F32 number before it is rounded to BF16.
class ColumnDecoder {
 public:
  ColumnDecoder(CodeGrid const& grid, Scheme const& scheme, Companions const& companions);

  Needs needs_of(RowPart const& part) const;
  /// Writes two bytes for each element. Pre: `stored` has what needs_of(part) names, and no group
  /// is beyond the blocks.
  void run(RowPart const& part, StoredParts const& stored, std::byte* to);

 private:
  void take_codes(std::int64_t row, RowPart const& part, TensorPart const& codes);
  void take_factors(std::int64_t row, RowPart const& part, StoredParts const& stored);
  double zero_point(std::int64_t row, std::int64_t scale, std::int64_t block_row,
                    std::int64_t block_column, StoredParts const& stored) const;
  void put_row(std::int64_t columns, std::byte* to) const;

  CodeGrid grid_;
  bool groups_;
  bool has_factors_;
  DType factor_dtype_;
  int zero_offset_;
  float last_;  ///< factor of all values
  std::array<float, 256> numbers_{};
  // Of one row, an element for each column of the part.
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
  std::vector<float> zeros_;
  std::vector<float> factors_;
};

}  // namespace reshard::quant
