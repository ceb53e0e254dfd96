#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "core/base/dtype.hpp"
#include "core/base/integers.hpp"
#include "core/quant/convert.hpp"

namespace reshard::quant {

/// Codes of a weight that is quantised here.
enum class CodeKind {
  e4m3,  ///< F8_E4M3 [rows, columns]
  int4   ///< I32 [rows, columns / 8, rounded up]: code + 8 in four bits, the first column lowest
};

/// How the scale of a block follows from its largest magnitude, and a code from both. Each
/// operation is rounded to the weight's dtype (quotient) or to F32 (reciprocal), to nearest even,
/// as PyTorch does it.
enum class ScaleRule {
  quotient,    ///< largest / 448, or / 7.5 for int4; the dtype's epsilon where that is 0. A code is
               ///< that of weight / scale (compressed-tensors)
  reciprocal,  ///< 1 / (448 / largest), and 1 where all are 0. A code is that of weight * (448 /
               ///< largest); E8M0 scales: the next power of two above (transformers)
  power        ///< a power of two: that of the largest, whose fraction is rounded up from 1.75 on,
               ///< less 8 (MX of compressed-tensors)
};

/// How a weight is quantised.
struct Encoding {
  CodeKind codes = CodeKind::e4m3;
  ScaleRule rule = ScaleRule::quotient;
  Index block_rows = 1;
  Index block_columns = 0;     ///< 0: all columns
  DType scales = DType::bf16;  ///< BF16, F16, F32; F8_E8M0 or U8 for powers of two
  friend bool operator==(Encoding const&, Encoding const&) = default;
};

/// Quantises matrices of one shape, some rows of blocks at a time. Codes are rounded to nearest
/// even; no value depends on the machine or on how a matrix is cut.
class Encoder {
 public:
  /// Weights are BF16, F16 or F32.
  Encoder(Encoding const& encoding, DType weights, Index columns);

  Index block_columns() const { return width_; }
  Index scale_columns() const { return (columns_ + width_ - 1) / width_; }
  Index code_row_bytes() const;
  Index scale_row_bytes() const { return scale_columns() * bits(encoding_.scales) / 8; }

  /// Quantises `rows` rows, the first of which is a multiple of block_rows: row-major weights in,
  /// row-major codes and scales out. The first infinity or NaN, which no scale is for, is returned;
  /// its element counts from the first of `weights`.
  std::optional<Inexact> run(Index rows, std::span<std::byte const> weights,
                             std::span<std::byte> codes, std::span<std::byte> scales) const;

 private:
  template <class Number>
  std::optional<Inexact> run_as(Index rows, std::byte const* weights, std::byte* codes,
                                std::byte* scales) const;

  Encoding encoding_;
  DType weights_;
  Index columns_;
  Index width_;
};

}  // namespace reshard::quant
