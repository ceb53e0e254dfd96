#include "core/quant/encode.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/error.hpp"
#include "core/quant/number_formats.hpp"
#include "core/quant/short_floats.hpp"
#include "core/quant/wide_vectors.hpp"

namespace reshard::quant {
namespace {

constexpr std::uint32_t infinity = 0x7f800000U;

/// A dtype of weights: its codes as F32, and F32 rounded to it.
template <class Code, int fraction_bits>
struct ShortNumber {
  using Stored = Code;
  static constexpr int fraction = fraction_bits;
};
struct Bf16 : ShortNumber<std::uint16_t, 7> {
  static constexpr DType dtype = DType::bf16;
  static constexpr float epsilon = 0x1p-7F;
  static constexpr int bias = 127;
  static std::uint32_t wide(std::uint16_t code) { return f32_of_bf16(code); }
  static float rounded(float value) {
    std::uint32_t const code = std::bit_cast<std::uint32_t>(value);
    return std::bit_cast<float>((code + 0x7fffU + (code >> 16U & 1U)) & 0xffff0000U);
  }
};
struct F16 : ShortNumber<std::uint16_t, 10> {
  static constexpr DType dtype = DType::f16;
  static constexpr float epsilon = 0x1p-10F;
  static constexpr int bias = 15;
  static std::uint32_t wide(std::uint16_t code) { return f32_of_f16(code); }
  static float rounded(float value) {
    return std::bit_cast<float>(f32_of_f16(f16_of(std::bit_cast<std::uint32_t>(value))));
  }
};
struct F32 : ShortNumber<std::uint32_t, 23> {
  static constexpr DType dtype = DType::f32;
  static constexpr float epsilon = 0x1p-23F;
  static constexpr int bias = 127;
  static std::uint32_t wide(std::uint32_t code) { return code; }
  static float rounded(float value) { return value; }
};

template <class Number>
typename Number::Stored load(std::byte const* from, Index element) {
  typename Number::Stored code;
  std::memcpy(&code, from + static_cast<std::size_t>(element) * sizeof code, sizeof code);
  return code;
}

/// The code of E4M3 nearest to a number of at most 448.
inline std::uint32_t e4m3_of(float value) {
  std::uint32_t const code = std::bit_cast<std::uint32_t>(value);
  std::uint32_t const size = code & 0x7fffffffU;
  constexpr std::uint32_t largest = 0x43e00000U;  // 448
  std::uint32_t const bounded = if_less(size, largest, size, largest);
  std::uint32_t const usual =
      ((bounded + 0x7ffffU + (bounded >> 20U & 1U)) >> 20U) - ((127U - 7U) << 3U);
  // Below 2^-6 the steps are 2^-9, as those of F32 are from 2^14 on.
  float const sum = std::bit_cast<float>(bounded) + 0x1p14F;
  std::uint32_t const small =
      std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0x1p14F);
  return if_less(bounded, 0x3c800000U, small, usual) | (code >> 24U & 0x80U);
}

/// The integer of -8 to 7 nearest to a number, plus 8. Pre: it is far below 2^22: a weight is at
/// most 7.5 scales, and 12 of one that was rounded to so few bits.
inline std::uint32_t int4_of(float value) {
  constexpr float whole = 0x1.8p23F;  // from here on floats have no fraction
  auto const steps = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(value + whole) -
                                               std::bit_cast<std::uint32_t>(whole));
  return static_cast<std::uint32_t>(std::min(std::max(steps, -8), 7) + 8);
}

/// Factor between the weights of a block and their codes.
struct Factor {
  float number = 1;
  std::uint32_t stored = 0;  ///< the scale as it is stored
};

std::uint32_t stored_scale(DType dtype, float scale) {
  std::uint32_t const code = std::bit_cast<std::uint32_t>(scale);
  if (dtype == DType::f32) return code;
  return dtype == DType::bf16 ? bf16_of(code) : f16_of(code);
}

template <class Number>
Factor quotient(CodeKind codes, DType stored, float largest) {
  float scale = Number::rounded(largest / (codes == CodeKind::int4 ? 7.5F : 448.0F));
  if (scale == 0) scale = Number::epsilon;
  return {scale, stored_scale(stored, scale)};
}

Factor reciprocal(DType stored, float largest) {
  float factor = largest > 0 ? (1.0F / largest) * 448.0F : 1.0F;
  if (std::isinf(factor)) factor = 1;  // smaller than any scale: zeros
  float scale = 1.0F / factor;
  if (stored == DType::f32) return {factor, std::bit_cast<std::uint32_t>(scale)};
  double const least = std::max(scale, 0x1p-126F);
  float const exponent = std::ceil(static_cast<float>(std::log2(least)));
  return {std::exp2(-exponent), static_cast<std::uint32_t>(static_cast<int>(exponent) + 127)};
}

/// `largest`: the code of the largest magnitude.
template <class Number>
Factor power(typename Number::Stored largest) {
  std::uint32_t const up = std::uint32_t{1} << (Number::fraction - 2U);
  auto const field = static_cast<int>((std::uint32_t{largest} + up) >> Number::fraction);
  int const exponent = field == 0 ? -127 : std::max(field - Number::bias - 8, -127);
  // F16 has no smaller powers of two: compressed-tensors takes 1 then.
  if (Number::dtype == DType::f16 && exponent < -24) return {1, 127};
  return {std::exp2(static_cast<float>(-exponent)), static_cast<std::uint32_t>(exponent + 127)};
}

/// A row's weights to codes, block by block.
template <class Number, class Of>
[[gnu::always_inline]] inline void encode_row(std::byte const* from, Index columns, Index width,
                                              Factor const* factors, Of const& of) {
  for (Index begin = 0; begin < columns; begin += width, ++factors)
    of(begin, std::min(begin + width, columns), factors->number, from);
}

template <class Number>
[[gnu::always_inline]] inline void e4m3_row(ScaleRule rule, std::byte const* from, Index columns,
                                            Index width, Factor const* factors, std::byte* to) {
  bool const divides = rule == ScaleRule::quotient;
  encode_row<Number>(
      from, columns, width, factors,
      [divides, to](Index begin, Index end, float factor, std::byte const* weights) {
        if (divides)
          for (Index i = begin; i < end; ++i)
            to[i] = static_cast<std::byte>(e4m3_of(Number::rounded(
                std::bit_cast<float>(Number::wide(load<Number>(weights, i))) / factor)));
        else
          for (Index i = begin; i < end; ++i)
            to[i] = static_cast<std::byte>(
                e4m3_of(std::bit_cast<float>(Number::wide(load<Number>(weights, i))) * factor));
      });
}

template <class Number>
[[gnu::always_inline]] inline void int4_row(std::byte const* from, Index columns, Index width,
                                            Factor const* factors, std::uint8_t* each,
                                            std::byte* to) {
  encode_row<Number>(
      from, columns, width, factors,
      [each](Index begin, Index end, float factor, std::byte const* weights) {
        for (Index i = begin; i < end; ++i)
          each[i] = static_cast<std::uint8_t>(int4_of(Number::rounded(
              std::bit_cast<float>(Number::wide(load<Number>(weights, i))) / factor)));
      });
  for (Index i = 0; i < (columns + 7) / 8 * 4; ++i) {
    std::uint16_t two = 0;
    std::memcpy(&two, each + 2 * i, sizeof two);
    to[i] = static_cast<std::byte>(two | two >> 4U);
  }
}

/// Raises the largest magnitude of each block of a row.
template <class Number>
[[gnu::always_inline]] inline void raise(std::byte const* from, Index columns, Index width,
                                         typename Number::Stored* largest) {
  using Signed = std::make_signed_t<typename Number::Stored>;
  constexpr auto magnitude =
      static_cast<typename Number::Stored>(~typename Number::Stored{0}) >> 1U;
  for (Index begin = 0; begin < columns; begin += width, ++largest) {
    Index const end = std::min(begin + width, columns);
    auto most = static_cast<Signed>(*largest);
    for (Index i = begin; i < end; ++i) {
      auto const one = static_cast<Signed>(load<Number>(from, i) & magnitude);
      most = most < one ? one : most;
    }
    *largest = static_cast<typename Number::Stored>(most);
  }
}

template <class Number>
std::optional<Inexact> first_special(std::byte const* weights, Index count) {
  for (Index i = 0; i < count; ++i) {
    float const value = std::bit_cast<float>(Number::wide(load<Number>(weights, i)));
    if (!std::isfinite(value)) return Inexact{static_cast<std::size_t>(i), value};
  }
  return std::nullopt;
}

}  // namespace

Encoder::Encoder(Encoding const& encoding, DType weights, Index columns)
    : encoding_(encoding),
      weights_(weights),
      columns_(columns),
      width_(encoding.block_columns == 0 ? std::max<Index>(columns, 1) : encoding.block_columns) {
  RESHARD_EXPECT(weights == DType::bf16 || weights == DType::f16 || weights == DType::f32);
}

Index Encoder::code_row_bytes() const {
  return encoding_.codes == CodeKind::int4 ? (columns_ + 7) / 8 * 4 : columns_;
}

template <class Number>
std::optional<Inexact> Encoder::run_as(Index rows, std::byte const* weights, std::byte* codes,
                                       std::byte* scales) const {
  using Stored = typename Number::Stored;
  Index const row_bytes = columns_ * static_cast<Index>(sizeof(Stored));
  auto const blocks = static_cast<std::size_t>(scale_columns());
  auto const scale_bytes = static_cast<std::size_t>(bits(encoding_.scales) / 8);
  std::vector<Stored> largest(blocks);
  std::vector<Factor> factors(blocks);
  std::vector<std::uint8_t> each(static_cast<std::size_t>((columns_ + 7) / 8 * 8));
  for (Index first = 0; first < rows; first += encoding_.block_rows) {
    Index const count = std::min(encoding_.block_rows, rows - first);
    std::byte const* const from = weights + first * row_bytes;
    std::ranges::fill(largest, Stored{0});
    with_wide_vectors([=, columns = columns_, width = width_, to = largest.data()] {
      for (Index r = 0; r < count; ++r) raise<Number>(from + r * row_bytes, columns, width, to);
    });
    for (std::size_t b = 0; b < blocks; ++b) {
      std::uint32_t const size = Number::wide(largest[b]);
      if (size >= infinity) {
        auto special = first_special<Number>(from, count * columns_);
        special->element += static_cast<std::size_t>(first * columns_);
        return special;
      }
      float const value = std::bit_cast<float>(size);
      factors[b] = encoding_.rule == ScaleRule::power ? power<Number>(largest[b])
                   : encoding_.rule == ScaleRule::reciprocal
                       ? reciprocal(encoding_.scales, value)
                       : quotient<Number>(encoding_.codes, encoding_.scales, value);
      std::memcpy(scales, &factors[b].stored, scale_bytes);
      scales += scale_bytes;
    }
    with_wide_vectors([=, columns = columns_, width = width_, rule = encoding_.rule,
                       is_int4 = encoding_.codes == CodeKind::int4, code_bytes = code_row_bytes(),
                       by = factors.data(), values = each.data(),
                       to = codes + first * code_row_bytes()] {
      for (Index r = 0; r < count; ++r)
        if (is_int4)
          int4_row<Number>(from + r * row_bytes, columns, width, by, values, to + r * code_bytes);
        else
          e4m3_row<Number>(rule, from + r * row_bytes, columns, width, by, to + r * code_bytes);
    });
  }
  return std::nullopt;
}

std::optional<Inexact> Encoder::run(Index rows, std::span<std::byte const> weights,
                                    std::span<std::byte> codes, std::span<std::byte> scales) const {
  [[maybe_unused]] Index const bands = (rows + encoding_.block_rows - 1) / encoding_.block_rows;
  RESHARD_EXPECT(static_cast<Index>(weights.size()) == rows * columns_ * bits(weights_) / 8 &&
                 static_cast<Index>(codes.size()) == rows * code_row_bytes() &&
                 static_cast<Index>(scales.size()) == bands * scale_row_bytes());
  if (weights_ == DType::bf16)
    return run_as<Bf16>(rows, weights.data(), codes.data(), scales.data());
  if (weights_ == DType::f16) return run_as<F16>(rows, weights.data(), codes.data(), scales.data());
  return run_as<F32>(rows, weights.data(), codes.data(), scales.data());
}

}  // namespace reshard::quant
