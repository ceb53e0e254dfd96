#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/quant/convert.hpp"

namespace reshard::quant {

/// Codes of a weight that is quantised here.
enum class CodeKind {
  e4m3,    ///< F8_E4M3 [rows, columns]
  packed,  ///< I32 [rows, columns * bits / 32, rounded up]: code + 2^(bits - 1), the first column
           ///< lowest
  e2m1,    ///< U8 [rows, columns / 2, rounded up], the even column in the low half
  i8       ///< I8 [rows, columns]
};

/// How the scale of a block follows from its largest magnitude, and a code from both. Each
/// operation is rounded to the weight's dtype (quotient) or to F32 (the others), to nearest even,
/// as PyTorch does it.
enum class ScaleRule {
  quotient,       ///< largest / 448, or / (2^(bits - 1) - 0.5) for integers; the dtype's epsilon
                  ///< where that is 0. A code is that of weight / scale (compressed-tensors)
  reciprocal,     ///< 1 / (448 / largest), and 1 where all are 0. A code is that of weight * (448 /
                  ///< largest); E8M0 scales: the next power of two above (transformers)
  power,          ///< a power of two: that of the largest, whose fraction is rounded up from 1.75
                  ///< on, less 8 (E4M3) or 2 (E2M1) (MX of compressed-tensors)
  wide_quotient,  ///< largest / 448, and 1 where all are 0. A code is that of weight / scale
                  ///< (ModelOpt)
  power_above,  ///< the power of two at or above largest / 448 (MXFP8 of ModelOpt) or / 6 (MXFP4 of
                ///< gpt-oss; a zero keeps its sign)
  divided,      ///< E4M3 of second * (largest / 6), whose quotient is in the weight's dtype;
                ///< 0.125 where that is 0. A code is that of weight / (scale / second) (NVFP4 of
                ///< compressed-tensors)
  times         ///< E4M3 of largest / (6 * second), at least 2^-9; 1 where all are 0. A code is
                ///< that of weight / (scale * second) (NVFP4 of ModelOpt)
};

/// Whether a second scale, of several weights together, stands beside those of blocks.
constexpr bool has_second(ScaleRule rule) { return rule >= ScaleRule::divided; }

/// How a weight is quantised.
struct Encoding {
  CodeKind codes = CodeKind::e4m3;
  ScaleRule rule = ScaleRule::quotient;
  Index block_rows = 1;
  Index block_columns = 0;     ///< 0: all columns
  DType scales = DType::bf16;  ///< BF16, F16, F32; F8_E8M0 or U8 for powers of two; F8_E4M3
  int integer_bits = 4;        ///< of integers: 4 or 8
  friend bool operator==(Encoding const&, Encoding const&) = default;
};

/// The second scale of weights whose largest magnitude is given: 2688 / largest in their dtype
/// (divided), or largest / 2688 (times); 1 where that is no number.
float second_scale(Encoding const& encoding, DType weights, float largest);

/// The largest magnitude of weights, or the first infinity or NaN.
struct Largest {
  float magnitude = 0;
  std::optional<Inexact> special = std::nullopt;
};
Largest largest_of(DType weights, std::span<std::byte const> values);

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
  /// its element counts from the first of `weights`. With a second scale `largest_of_all` is the
  /// largest magnitude of all weights that share it.
  std::optional<Inexact> run(Index rows, std::span<std::byte const> weights,
                             std::span<std::byte> codes, std::span<std::byte> scales,
                             float largest_of_all = 0) const;

 private:
  template <class Number>
  std::optional<Inexact> run_as(Index rows, std::byte const* weights, std::byte* codes,
                                std::byte* scales, float largest_of_all) const;

  Encoding encoding_;
  DType weights_;
  Index columns_;
  Index width_;
};

}  // namespace reshard::quant
