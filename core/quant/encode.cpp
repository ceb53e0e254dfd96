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
  static constexpr float largest_zero = 0;  ///< F32 up to here are rounded to zero
};
struct Bf16 : ShortNumber<std::uint16_t, 7> {
  static constexpr DType dtype = DType::bf16;
  static constexpr float epsilon = 0x1p-7F;
  static constexpr float least = 0x1p-126F;  ///< with all bits of the fraction
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
  static constexpr float least = 0x1p-14F;  ///< with all bits of the fraction
  static constexpr float largest_zero = 0x1p-25F;
  static constexpr int bias = 15;
  static std::uint32_t wide(std::uint16_t code) { return f32_of_f16(code); }
  static float rounded(float value) {
    return std::bit_cast<float>(f32_of_f16(f16_of(std::bit_cast<std::uint32_t>(value))));
  }
};
struct F32 : ShortNumber<std::uint32_t, 23> {
  static constexpr DType dtype = DType::f32;
  static constexpr float epsilon = 0x1p-23F;
  static constexpr float least = 0x1p-126F;  ///< with all bits of the fraction
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

/// The code of E2M1 nearest to a number, of two the even one.
inline std::uint32_t e2m1_of(float value, bool negative) {
  float const size = std::abs(value);
  int const below = (size > 0.25F) + (size > 1.25F) + (size > 2.5F) + (size > 5.0F);
  int const upto = (size >= 0.75F) + (size >= 1.75F) + (size >= 3.5F);
  return static_cast<std::uint32_t>(below + upto) + (negative ? 8U : 0U);
}

/// The integer from -half to half - 1 nearest to a number, plus half. Pre: it is far below 2^22: a
/// weight is at most half a scale's range, and twice that of one that was rounded to so few bits.
inline std::uint32_t integer_of(float value, int half) {
  constexpr float whole = 0x1.8p23F;  // from here on floats have no fraction
  auto const steps = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(value + whole) -
                                               std::bit_cast<std::uint32_t>(whole));
  return static_cast<std::uint32_t>(std::min(std::max(steps, -half), half - 1) + half);
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

/// Largest magnitude of a code.
float reach(Encoding const& encoding) {
  if (encoding.codes == CodeKind::e4m3) return 448;
  if (encoding.codes == CodeKind::e2m1) return 6;
  return static_cast<float>(1 << (encoding.integer_bits - 1)) - 0.5F;
}

template <class Number>
Factor quotient(Encoding const& encoding, float largest) {
  float scale = Number::rounded(largest / reach(encoding));
  if (scale == 0) scale = Number::epsilon;
  return {scale, stored_scale(encoding.scales, scale)};
}

template <class Number>
Factor wide_quotient(float largest) {
  float const scale = largest == 0 ? 1 : std::max(largest, Number::least) / 448.0F;
  return {scale, std::bit_cast<std::uint32_t>(scale)};
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

Factor of_exponent(int exponent) {
  return {std::exp2(static_cast<float>(-exponent)), static_cast<std::uint32_t>(exponent + 127)};
}

/// `largest`: the code of the largest magnitude.
template <class Number>
Factor power(CodeKind codes, typename Number::Stored largest) {
  std::uint32_t const up = std::uint32_t{1} << (Number::fraction - 2U);
  auto const field = static_cast<int>((std::uint32_t{largest} + up) >> Number::fraction);
  int const below = codes == CodeKind::e2m1 ? 2 : 8;
  int const exponent = field == 0 ? -127 : std::max(field - Number::bias - below, -127);
  // F16 has no smaller powers of two: compressed-tensors takes 1 then.
  if (Number::dtype == DType::f16 && exponent < -24) return {1, 127};
  return of_exponent(exponent);
}

Factor power_above(Encoding const& encoding, float largest) {
  float const scale = largest / reach(encoding);
  if (scale == 0) return of_exponent(-127);
  auto const exponent = std::ceil(static_cast<float>(std::log2(static_cast<double>(scale))));
  return of_exponent(std::max(static_cast<int>(exponent), -127));
}

/// The E4M3 scale of a block of E2M1 codes beside a second scale.
template <class Number>
Factor fine(ScaleRule rule, float second, float largest) {
  float const whole = 448.0F;
  if (rule == ScaleRule::divided) {
    std::uint32_t code = e4m3_of(std::min(second * Number::rounded(largest / 6.0F), whole));
    if (code == 0) code = 0x20;  // 0.125, the epsilon of E4M3
    return {static_cast<float>(decode(formats::e4m3, code)) / second, code};
  }
  float const scale = largest / (6.0F * second);
  std::uint32_t const code = e4m3_of(scale == 0 ? 1.0F : std::clamp(scale, 0x1p-9F, whole));
  return {static_cast<float>(decode(formats::e4m3, code)) * second, code};
}

/// How codes follow from weights and the factors of their blocks.
enum class Step { divide_short, divide, multiply };

Step step_of(ScaleRule rule) {
  if (rule == ScaleRule::quotient) return Step::divide_short;
  bool const divides = rule == ScaleRule::wide_quotient || has_second(rule);
  return divides ? Step::divide : Step::multiply;
}

/// A row's weights over their scales, block by block: put(column, number).
template <class Number, class Put>
[[gnu::always_inline]] inline void scale_row(Step step, std::byte const* from, Index columns,
                                             Index width, Factor const* factors, Put const& put) {
  auto const weight = [from](Index i) {
    return std::bit_cast<float>(Number::wide(load<Number>(from, i)));
  };
  for (Index begin = 0; begin < columns; begin += width, ++factors) {
    Index const end = std::min(begin + width, columns);
    float const factor = factors->number;
    if (step == Step::divide_short)
      for (Index i = begin; i < end; ++i) put(i, Number::rounded(weight(i) / factor));
    else if (step == Step::divide)
      for (Index i = begin; i < end; ++i) put(i, weight(i) / factor);
    else
      for (Index i = begin; i < end; ++i) put(i, weight(i) * factor);
  }
}

/// Pairs of codes in four bits, the first one lowest.
[[gnu::always_inline]] inline void pack(std::uint8_t const* each, Index bytes, std::byte* to) {
  for (Index i = 0; i < bytes; ++i) {
    std::uint16_t two = 0;
    std::memcpy(&two, each + 2 * i, sizeof two);
    to[i] = static_cast<std::byte>(two | two >> 4U);
  }
}

/// A row's codes; `each` has a byte for every code, and zeros behind them.
template <class Number>
[[gnu::always_inline]] inline void encode_row(Encoding const& encoding, Step step,
                                              std::byte const* from, Index columns, Index width,
                                              Factor const* factors, std::uint8_t* each,
                                              Index bytes, std::byte* to) {
  int const half = 1 << (encoding.integer_bits - 1);
  if (encoding.codes == CodeKind::e4m3) {
    scale_row<Number>(step, from, columns, width, factors, [to](Index i, float value) {
      to[i] = static_cast<std::byte>(e4m3_of(value));
    });
  } else if (encoding.codes == CodeKind::e2m1) {
    // Those who divide have no zero below zero; compressed-tensors' quotient of MXFP4 may become
    // one in F16.
    bool const zeros = encoding.rule == ScaleRule::power_above;
    float const below = encoding.rule == ScaleRule::power ? -Number::largest_zero : 0;
    scale_row<Number>(step, from, columns, width, factors,
                      [each, zeros, below](Index i, float value) {
                        bool const negative =
                            zeros ? std::bit_cast<std::uint32_t>(value) >> 31U != 0 : value < below;
                        each[i] = static_cast<std::uint8_t>(e2m1_of(value, negative));
                      });
    pack(each, bytes, to);
  } else {
    scale_row<Number>(step, from, columns, width, factors, [each, half](Index i, float value) {
      each[i] = static_cast<std::uint8_t>(integer_of(value, half));
    });
    if (encoding.integer_bits == 4) return pack(each, bytes, to);
    auto const flip = static_cast<std::uint8_t>(encoding.codes == CodeKind::i8 ? half : 0);
    for (Index i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(each[i] ^ flip);
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

template <class Number>
Factor factor_of(Encoding const& encoding, float second, typename Number::Stored largest) {
  float const value = std::bit_cast<float>(Number::wide(largest));
  switch (encoding.rule) {
    case ScaleRule::quotient: return quotient<Number>(encoding, value);
    case ScaleRule::wide_quotient: return wide_quotient<Number>(value);
    case ScaleRule::reciprocal: return reciprocal(encoding.scales, value);
    case ScaleRule::power: return power<Number>(encoding.codes, largest);
    case ScaleRule::power_above: return power_above(encoding, value);
    case ScaleRule::divided:
    case ScaleRule::times: break;
  }
  return fine<Number>(encoding.rule, second, value);
}

/// Calls use(Number()) for a dtype of weights.
template <class Use>
auto with_number(DType weights, Use const& use) {
  if (weights == DType::bf16) return use(Bf16());
  if (weights == DType::f16) return use(F16());
  return use(F32());
}

}  // namespace

float second_scale(Encoding const& encoding, DType weights, float largest) {
  constexpr float most = 448.0F * 6.0F;
  if (encoding.rule == ScaleRule::times) return largest == 0 ? 1 : largest / most;
  return with_number(weights, [&]<class Number>(Number) {
    // PyTorch divides a number by a tensor in two steps.
    float const inverse = Number::rounded(1.0F / std::max(largest, Number::least));
    float const scale = Number::rounded(most * inverse);
    return std::isinf(scale) ? 1 : scale;
  });
}

Largest largest_of(DType weights, std::span<std::byte const> values) {
  return with_number(weights, [&]<class Number>(Number) {
    using Stored = typename Number::Stored;
    auto const count = static_cast<Index>(values.size() / sizeof(Stored));
    Stored most = 0;
    with_wide_vectors([&values, count, to = &most] {
      raise<Number>(values.data(), count, std::max<Index>(count, 1), to);
    });
    Largest result;
    if (Number::wide(most) >= infinity)
      result.special = first_special<Number>(values.data(), count);
    else
      result.magnitude = std::bit_cast<float>(Number::wide(most));
    return result;
  });
}

Encoder::Encoder(Encoding const& encoding, DType weights, Index columns)
    : encoding_(encoding),
      weights_(weights),
      columns_(columns),
      width_(encoding.block_columns == 0 ? std::max<Index>(columns, 1) : encoding.block_columns) {
  RESHARD_EXPECT(weights == DType::bf16 || weights == DType::f16 || weights == DType::f32);
}

Index Encoder::code_row_bytes() const {
  if (encoding_.codes == CodeKind::e2m1) return (columns_ + 1) / 2;
  if (encoding_.codes != CodeKind::packed) return columns_;
  return (columns_ * encoding_.integer_bits + 31) / 32 * 4;
}

template <class Number>
std::optional<Inexact> Encoder::run_as(Index rows, std::byte const* weights, std::byte* codes,
                                       std::byte* scales, float largest_of_all) const {
  using Stored = typename Number::Stored;
  Index const row_bytes = columns_ * static_cast<Index>(sizeof(Stored));
  auto const blocks = static_cast<std::size_t>(scale_columns());
  auto const scale_bytes = static_cast<std::size_t>(bits(encoding_.scales) / 8);
  float const second =
      has_second(encoding_.rule) ? second_scale(encoding_, weights_, largest_of_all) : 1;
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
      if (Number::wide(largest[b]) >= infinity) {
        auto special = first_special<Number>(from, count * columns_);
        special->element += static_cast<std::size_t>(first * columns_);
        return special;
      }
      factors[b] = factor_of<Number>(encoding_, second, largest[b]);
      std::memcpy(scales, &factors[b].stored, scale_bytes);
      scales += scale_bytes;
    }
    with_wide_vectors([=, columns = columns_, width = width_, encoding = encoding_,
                       code_bytes = code_row_bytes(), by = factors.data(), values = each.data(),
                       to = codes + first * code_row_bytes()] {
      Step const step = step_of(encoding.rule);
      for (Index r = 0; r < count; ++r)
        encode_row<Number>(encoding, step, from + r * row_bytes, columns, width, by, values,
                           code_bytes, to + r * code_bytes);
    });
  }
  return std::nullopt;
}

std::optional<Inexact> Encoder::run(Index rows, std::span<std::byte const> weights,
                                    std::span<std::byte> codes, std::span<std::byte> scales,
                                    float largest_of_all) const {
  [[maybe_unused]] Index const bands = (rows + encoding_.block_rows - 1) / encoding_.block_rows;
  RESHARD_EXPECT(static_cast<Index>(weights.size()) == rows * columns_ * bits(weights_) / 8 &&
                 static_cast<Index>(codes.size()) == rows * code_row_bytes() &&
                 static_cast<Index>(scales.size()) == bands * scale_row_bytes());
  return with_number(weights_, [&]<class Number>(Number) {
    return run_as<Number>(rows, weights.data(), codes.data(), scales.data(), largest_of_all);
  });
}

}  // namespace reshard::quant
