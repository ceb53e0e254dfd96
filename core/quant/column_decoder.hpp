#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
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
  std::uint8_t const* take_codes(std::int64_t row, RowPart const& part, TensorPart const& codes,
                                 std::size_t bytes);
  void take_factors(std::int64_t row, RowPart const& part, StoredParts const& stored);
  void take_scales(std::int64_t first, std::int64_t count, double second, TensorPart const& scales);
  void take_zeros(std::int64_t row, std::int64_t scale_row, std::int64_t first, std::int64_t count,
                  StoredParts const& stored);
  void put_numbers(std::uint8_t const* codes, std::int64_t count, float* to) const;
  void put_row(std::uint8_t const* codes, std::int64_t columns, std::byte* to) const;

  CodeGrid grid_;
  bool groups_;
  bool has_factors_;
  DType factor_dtype_;
  int zero_offset_;
  float last_;  ///< factor of all values
  std::array<float, 256> numbers_{};
  std::array<float, 256> short_scales_{};  ///< by code, of 8-bit scales times the second one
  std::optional<std::uint64_t> second_;    ///< that one, as bits
  std::vector<std::uint8_t> codes_;        ///< of a row or of zero points
  // Of one row, an element for each of its blocks.
  std::vector<float> block_scales_;
  std::vector<float> block_zeros_;
  // An element for each column of the part.
  std::vector<float> scales_;
  std::vector<float> zeros_;
  std::vector<float> factors_;
};

}  // namespace reshard::quant
