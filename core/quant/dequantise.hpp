#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "core/quant/scheme.hpp"

namespace reshard::quant {

/// The part of a stack that is computed in one go: several whole rows, or some columns of one row. At least one element.
struct RowPart {
  Index first_row = 0;
  Index rows = 1;
  Index first_column = 0;
  Index columns = 0;
};

/// [begin, end) of a tensor in row-major order.
struct FlatRange {
  Index begin = 0;
  Index end = 0;
  friend bool operator==(FlatRange const&, FlatRange const&) = default;
};

/// What a part needs of the stored tensors: bytes of the codes, elements of the others.
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
/// The product is rounded once: to the nearest BF16, of two the even one. A code less its zero point has at most 9 significant bits and a scale of
/// 24 bits at most leaves the product exact in a double; beside a second scale codes have 4 bits at most, so that holds there, too. A quotient is
/// seldom exact, but one that is not lies further from every border between two BF16 values than a double rounds. NaNs and products beyond BF16
/// become what IEEE 754 says.
class Dequantiser {
 public:
  /// Pre: problem_of() finds nothing, and companions.seconds is 1 or shape.stack.
  Dequantiser(Scheme const& scheme, MatrixShape const& shape, Companions const& companions);

  MatrixShape const& shape() const { return shape_; }
  /// How large the stored tensors are: bytes of the codes, elements of the others.
  Index row_bytes() const { return row_bytes_; }
  Index code_bytes() const { return shape_.stack * shape_.rows * row_bytes_; }
  Index scale_rows() const { return scale_rows_; }  ///< of one matrix
  Index scale_columns() const { return scale_columns_; }
  Index zero_rows() const { return zero_rows_; }  ///< of one matrix; each has scale_columns() elements

  Needs needs_of(RowPart const& part) const;
  /// Writes two bytes for each element of the part. Pre: `stored` has what needs_of(part) names.
  void run(RowPart const& part, StoredBytes const& stored, std::span<std::byte> to) const;

 private:
  /// What the codes of one block become: (code - zero) * scale / divisor.
  struct Factors {
    double scale = 1;
    double divisor = 1;
    double zero = 0;
  };
  Index scale_at(Index row, Index column) const;
  /// The first and the last word that hold the zero point.
  FlatRange zero_words(Index row, Index column) const;
  Index second_at(Index row) const { return companions_.seconds == 1 ? 0 : row / shape_.rows; }
  double second_of(Index row, Needs const& needs, StoredBytes const& stored) const;
  double zero_at(Index row, Index column, Needs const& needs, StoredBytes const& stored) const;
  void run_block(std::span<std::byte const> codes, Index first_bit, Index count, Factors const& factors, std::byte* to) const;

  Scheme scheme_;
  MatrixShape shape_;
  Companions companions_;
  int bits_ = 8;  ///< of a code
  Index row_bytes_ = 0;
  Index block_rows_ = 1;
  Index block_columns_ = 1;
  Index scale_rows_ = 0;  ///< of one matrix
  Index scale_columns_ = 0;
  Index zero_rows_ = 0;               ///< rows of words of one matrix
  std::array<double, 256> values_{};  ///< of the codes
};

}  // namespace reshard::quant
