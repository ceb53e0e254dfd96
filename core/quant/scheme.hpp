#pragma once

#include <optional>
#include <string>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/quant/code_grid.hpp"

namespace reshard::quant {

/// A quantised form: value = (code - zero point) * scale, with one scale for each block of the
/// matrix. The table in docs/formats/quantised.md says which fields each of the known forms has.
struct Scheme {
  CodeFormat codes = CodeFormat::e4m3;
  int integer_bits = 4;     ///< of CodeFormat::integer: 1 to 8
  Index block_rows = 1;     ///< rows that share a scale; 0: all of the matrix
  Index block_columns = 1;  ///< columns that share a scale; 0: all of the matrix
  SecondScale second = SecondScale::none;
  CodeOrder order = CodeOrder::columns;
  int zero_offset = 0;  ///< the zero point is the stored one and this, in integer_bits
  int divisor = 1;      ///< values are multiplied by the F32 nearest to its reciprocal, last
  friend bool operator==(Scheme const&, Scheme const&) = default;
};

/// Bits of one code.
int code_bits(Scheme const& scheme);

/// A stack of matrices in row-major order, [stack, rows, columns]. A row number counts through the
/// stack: row r of matrix s is s * rows + r.
struct MatrixShape {
  Index stack = 1;
  Index rows = 0;
  Index columns = 0;
  friend bool operator==(MatrixShape const&, MatrixShape const&) = default;
};

/// The tensors beside the codes.
struct Companions {
  DType scale = DType::f32;   ///< F32, BF16, F16, F8_E4M3, F8_E5M2; F8_E8M0 and U8 are both E8M0
  DType second = DType::f32;  ///< F32, BF16, F16
  Index seconds = 1;          ///< 1, or one for each matrix of the stack
  std::optional<DType> zero_points =
      std::nullopt;  ///< I8: one beside each scale. I32: packed as codes are, but along the rows of
                     ///< each matrix; with `interleaved` and `rows` along the columns of the scales
  bool groups =
      false;  ///< I32: the block of each column; with `interleaved` and `rows` of each row
  std::optional<DType> factors = std::nullopt;  ///< F32, BF16, F16: one for each column
};

/// Whether each column of a row has factors of its own, or codes do not lie along the rows. A
/// device does not decode such a form.
bool is_by_columns(Scheme const& scheme, Companions const& companions);

/// The fault of the fields, as "a scale of F64 is not known"; nothing when a Dequantiser takes
/// them.
std::optional<std::string> problem_of(Scheme const& scheme, Companions const& companions);

}  // namespace reshard::quant
