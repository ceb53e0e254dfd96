#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "core/base/dtype.hpp"

namespace reshard::quant {

/// Meaning of the codes with all exponent bits set.
enum class Specials {
  ieee,      ///< infinities and NaNs
  nan_only,  ///< numbers, except the last code of each sign, which is a NaN (the "fn" formats of
             ///< OCP's 8-bit specification)
  none,      ///< numbers
};

/// A binary floating-point format: sign, exponent, fraction from the highest bit down; bias
/// 2^(exponent_bits - 1) - 1; subnormals.
struct FloatFormat {
  int exponent_bits = 0;
  int fraction_bits = 0;
  Specials specials = Specials::ieee;

  constexpr int bits() const { return 1 + exponent_bits + fraction_bits; }
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  /// By value: a kernel cannot refer to the constants below.
  friend bool operator==(FloatFormat, FloatFormat) = default;
};

namespace formats {
inline constexpr FloatFormat f64{11, 52};
inline constexpr FloatFormat f32{8, 23};
inline constexpr FloatFormat bf16{8, 7};
inline constexpr FloatFormat f16{5, 10};
inline constexpr FloatFormat e5m2{5, 2};
inline constexpr FloatFormat e4m3{4, 3, Specials::nan_only};
inline constexpr FloatFormat e2m1{2, 1, Specials::none};
}  // namespace formats

/// The format of a dtype of one value per element; nothing for integers, E8M0 and the kinds without
/// a use here.
std::optional<FloatFormat> float_format(DType dtype);

// decode() and encode() are inlined always: with a constant format they come down to a few shifts.
namespace detail {
constexpr std::uint64_t ones(int bits) { return (std::uint64_t{1} << bits) - 1; }
}  // namespace detail

/// The value of a code, exactly: every format here is a part of double. A NaN keeps its sign and,
/// in the upper bits, its payload. Pre: code has no bit above format.bits().
[[gnu::always_inline]] constexpr double decode(FloatFormat format, std::uint64_t code) {
  std::uint64_t const fraction = code & detail::ones(format.fraction_bits);
  std::uint64_t const exponent =
      (code >> format.fraction_bits) & detail::ones(format.exponent_bits);
  std::uint64_t const sign = (code >> (format.bits() - 1)) << 63U;
  std::uint64_t const upper = fraction << (52 - format.fraction_bits);
  if (exponent == detail::ones(format.exponent_bits) && format.specials != Specials::none) {
    if (format.specials == Specials::ieee)
      return std::bit_cast<double>(sign | (std::uint64_t{0x7ff} << 52U) | upper);
    if (fraction == detail::ones(format.fraction_bits))
      return std::bit_cast<double>(sign | (std::uint64_t{0x7ff8} << 48U));
  }
  if (format == formats::f64) return std::bit_cast<double>(code);
  if (exponent == 0) {  // the fraction counts steps of the smallest number above zero
    double const step = std::bit_cast<double>(
        static_cast<std::uint64_t>(1 - format.bias() - format.fraction_bits + 1023) << 52U);
    double const value = static_cast<double>(fraction) * step;
    return sign == 0 ? value : -value;
  }
  return std::bit_cast<double>(
      sign | (exponent + 1023U - static_cast<std::uint64_t>(format.bias())) << 52U | upper);
}

/// OCP's E8M0: 2^(code - 127), and a NaN for 255. There is no sign and no zero.
constexpr double decode_e8m0(std::uint8_t code) {
  if (code == 0xff) return std::bit_cast<double>(std::uint64_t{0x7ff8} << 48U);
  return std::bit_cast<double>((std::uint64_t{code} + 1023U - 127U) << 52U);
}

/// A code and whether it has the very value that was asked for.
struct Encoded {
  std::uint64_t code = 0;
  bool exact = true;
};

/// The nearest code, of two equally near ones the even one; beyond the largest number infinity, as
/// IEEE 754 rounds. A NaN keeps its sign and the upper bits of its payload and stays a NaN; it is
/// exact when no bit of the payload is lost. Pre: format.specials is ieee.
[[gnu::always_inline]] constexpr Encoded encode(FloatFormat format, double value) {
  auto const bits = std::bit_cast<std::uint64_t>(value);
  if (format == formats::f64) return {bits, true};
  std::uint64_t const sign = (bits >> 63U) << (format.bits() - 1);
  std::uint64_t const fraction = bits & detail::ones(52);
  int const exponent = static_cast<int>((bits >> 52U) & 0x7ffU);
  std::uint64_t const infinity = detail::ones(format.exponent_bits) << format.fraction_bits;
  int const usual_shift = 52 - format.fraction_bits;
  if (exponent == 0x7ff) {
    std::uint64_t upper = fraction >> usual_shift;
    bool const exact = upper << usual_shift == fraction;
    if (fraction != 0 && upper == 0) upper = std::uint64_t{1} << (format.fraction_bits - 1);
    return {sign | infinity | upper, exact};
  }
  if (exponent == 0)
    return {
        sign,
        fraction ==
            0};  // below the smallest double with full precision: nearer to zero than to any code
  int const scaled = exponent - 1023 + format.bias();
  if (scaled >= 1 &&
      scaled < (1 << format.exponent_bits) -
                   2) {  // the usual case, without a branch that depends on the digits
    std::uint64_t const size = bits & detail::ones(63);
    std::uint64_t const odd = (size >> usual_shift) & 1U;
    std::uint64_t const rounded = (size + detail::ones(usual_shift - 1) + odd) >> usual_shift;
    std::uint64_t const offset = static_cast<std::uint64_t>(1023 - format.bias())
                                 << format.fraction_bits;
    return {sign | (rounded - offset), (size & detail::ones(usual_shift)) == 0};
  }
  int const shift = scaled >= 1 ? usual_shift : usual_shift + 1 - scaled;
  if (shift > 53) return {sign, false};
  std::uint64_t const digits = (std::uint64_t{1} << 52U) | fraction;
  std::uint64_t const rest = digits & detail::ones(shift);
  std::uint64_t const half = std::uint64_t{1} << (shift - 1);
  std::uint64_t kept = digits >> shift;
  if (rest > half || (rest == half && (kept & 1U) != 0)) ++kept;
  // The leading one of `kept` counts as one step of the exponent, and so does a carry out of it.
  std::uint64_t const code =
      kept + (scaled >= 1 ? static_cast<std::uint64_t>(scaled - 1) << format.fraction_bits : 0);
  if (code >= infinity) return {sign | infinity, false};
  return {sign | code, rest == 0};
}

}  // namespace reshard::quant
