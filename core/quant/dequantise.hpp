#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/quant/code_grid.hpp"
#include "core/quant/element_tables.hpp"
#include "core/quant/scheme.hpp"

namespace reshard::quant {

/// The part of a stack that is computed in one go: several whole rows, or some columns of one row.
/// At least one element.
struct RowPart {
  Index first_row = 0;
  Index rows = 1;
  Index first_column = 0;
  Index columns = 0;
};

/// The largest part that elements [first, first + count) of a stack begin with: whole rows where
/// they begin one, else up to the row's end. At most `most_rows` rows; of a row that is cut, at
/// most `most_columns` columns. Pre: count and most_columns are at least 1.
RowPart leading_part(Index columns, Index first, Index count, Index most_rows, Index most_columns);

/// Ranges of the stored tensors that a part needs: bytes of the codes, elements of the others.
struct Needs {
  FlatRange code_bytes;
  FlatRange scales;
  FlatRange seconds;      ///< empty without a second scale
  FlatRange zero_points;  ///< empty without zero points
};

/// The bytes that a Needs names. They may lie at any address.
struct StoredBytes {
  std::span<std::byte const> codes;
  std::span<std::byte const> scales;
  std::span<std::byte const> seconds;
  std::span<std::byte const> zero_points;
};

/// Decodes a stack of quantised matrices to BF16.
///
/// The product is rounded once: to the nearest BF16, of two the even one. A code less its zero
/// point has at most 9 significant bits and a scale of 24 bits at most leaves the product exact in
/// a double; beside a second scale codes have 4 bits at most, so that holds there, too. A quotient
/// is seldom exact, but one that is not lies further from every border between two BF16 values than
/// a double rounds. NaNs and products beyond BF16 become what IEEE 754 says.
class Dequantiser {
 public:
  /// Pre: problem_of() finds nothing, and companions.seconds is 1 or shape.stack.
  Dequantiser(Scheme const& scheme, MatrixShape const& shape, Companions const& companions);

  MatrixShape const& shape() const { return shape_; }
  Companions const& companions() const { return companions_; }
  CodeGrid const& grid() const { return grid_; }
  /// How large the stored tensors are: bytes of the codes, elements of the others.
  Index row_bytes() const { return grid_.row_bytes; }
  Index code_bytes() const { return shape_.stack * shape_.rows * grid_.row_bytes; }
  Index scale_rows() const { return grid_.scale_rows; }  ///< of one matrix
  Index scale_columns() const { return grid_.scale_columns; }
  Index zero_rows() const {
    return grid_.zero_rows;
  }  ///< of one matrix; each has scale_columns() elements

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
};

}  // namespace reshard::quant
