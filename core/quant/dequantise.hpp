#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/quant/code_grid.hpp"
#include "core/quant/column_decoder.hpp"
#include "core/quant/element_tables.hpp"
#include "core/quant/scheme.hpp"

namespace reshard::quant {

/// The largest part that elements [first, first + count) of a stack begin with: whole rows where
/// they begin one, else up to the row's end. At most `most_rows` rows; of a row that is cut, at
/// most `most_columns` columns. Pre: count and most_columns are at least 1.
RowPart leading_part(Index columns, Index first, Index count, Index most_rows, Index most_columns);

/// Decodes a stack of quantised matrices to BF16.
///
/// The arithmetic is that of the libraries that write these forms: a scale and its second one are
/// one F32 number, the product with a code less its zero point is one in F32, and that is rounded
/// to the nearest BF16, of two the even one. NaNs and products beyond BF16 become what IEEE 754
/// says.
class Dequantiser {
 public:
  /// Pre: problem_of() finds nothing, and companions.seconds is 1 or shape.stack.
  Dequantiser(Scheme const& scheme, MatrixShape const& shape, Companions const& companions);

  MatrixShape const& shape() const { return shape_; }
  Companions const& companions() const { return companions_; }
  CodeGrid const& grid() const { return grid_; }
  /// How large the stored tensors are: bytes of the codes, elements of the others.
  Index row_bytes() const { return grid_.row_bytes; }
  Index code_bytes() const { return code_rows() * grid_.row_bytes; }
  /// Rows of codes of the stack, row_bytes() each: several rows of the weight may lie in one.
  Index code_rows() const {
    Index const rows = shape_.stack * shape_.rows;
    return rows == 0 ? 0 : last_code_row(grid_, rows - 1) + 1;
  }
  Index scale_rows() const { return grid_.scale_rows; }  ///< of one matrix
  Index scale_columns() const { return grid_.scale_columns; }
  Index zero_rows() const { return grid_.zero_rows; }  ///< of one matrix
  Index zero_columns() const { return grid_.zero_columns; }

  Needs needs_of(RowPart const& part) const;
  /// Writes two bytes for each element of the part. Pre: `stored` has what needs_of(part) names.
  void run(RowPart const& part, StoredBytes const& stored, std::span<std::byte> to);

 private:
  void run_rows(RowPart const& part, std::span<std::byte const> codes, StoredParts const& parts,
                std::byte* to);
  void run_blocks(Index row, Index first_column, Index columns, std::uint8_t const* codes,
                  StoredParts const& parts, std::byte* to);
  void compute(std::uint8_t const* codes, Index count, Factors const& factors, std::byte* to) const;
  void fill(Factors const& factors, std::span<std::uint16_t> table) const;

  MatrixShape shape_;
  Companions companions_;
  CodeGrid grid_;
  std::array<double, 256> values_{};  ///< of the codes
  std::array<float, 256> numbers_{};  ///< the same
  ElementTables tables_;
  std::optional<ColumnDecoder> by_columns_;
};

}  // namespace reshard::quant
