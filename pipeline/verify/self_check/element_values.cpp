#include "pipeline/verify/self_check/element_values.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

/// A floating-point format: sign, exponent, mantissa. `finite`: all codes but the last two are
/// numbers (E4M3); else an exponent of ones is infinity or NaN.
struct FloatFormat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
  bool finite = false;
};

std::optional<FloatFormat> format_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return FloatFormat{11, 52};
    case DType::f32: return FloatFormat{8, 23};
    case DType::bf16: return FloatFormat{8, 7};
    case DType::f16: return FloatFormat{5, 10};
    case DType::f8_e5m2: return FloatFormat{5, 2};
    case DType::f8_e4m3: return FloatFormat{4, 3, true};
    default: return std::nullopt;
  }
}

std::uint64_t code_of(std::span<std::byte const> element) {
  std::uint64_t code = 0;
  for (std::size_t i = 0; i < element.size(); ++i)
    code |= std::to_integer<std::uint64_t>(element[i]) << (8 * i);
  return code;
}

/// The value of a code without its sign.
double magnitude(FloatFormat const& format, std::uint64_t code) {
  std::uint64_t const mantissa = code & ((std::uint64_t{1} << format.mantissa_bits) - 1);
  std::uint64_t const exponent = code >> format.mantissa_bits;
  std::uint64_t const ones = (std::uint64_t{1} << format.exponent_bits) - 1;
  int const bias = (1 << (format.exponent_bits - 1)) - 1;
  bool const last = format.finite && mantissa == (std::uint64_t{1} << format.mantissa_bits) - 1;
  if (exponent == ones && (!format.finite || last))
    return mantissa == 0 && !format.finite ? std::numeric_limits<double>::infinity()
                                           : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0)
    return std::ldexp(static_cast<double>(mantissa), 1 - bias - format.mantissa_bits);
  return std::ldexp(static_cast<double>(mantissa + (std::uint64_t{1} << format.mantissa_bits)),
                    static_cast<int>(exponent) - bias - format.mantissa_bits);
}

std::uint64_t sign_bit(FloatFormat const& format) {
  return std::uint64_t{1} << (format.exponent_bits + format.mantissa_bits);
}

/// Half the distance to the next number, upwards or downwards; beyond the largest one the step is
/// that before it.
double half_step(FloatFormat const& format, std::uint64_t code, bool up) {
  double const here = magnitude(format, code);
  if (!up) return code == 0 ? 0 : (here - magnitude(format, code - 1)) / 2;
  double const next = magnitude(format, code + 1);
  if (std::isfinite(next)) return (next - here) / 2;
  return (here - magnitude(format, code - 1)) / 2;
}

}  // namespace

std::optional<double> value_of(DType dtype, std::span<std::byte const> element) {
  if (dtype == DType::f8_e8m0) {
    std::uint64_t const code = code_of(element);
    if (code == 255) return std::numeric_limits<double>::quiet_NaN();
    return std::ldexp(1.0, static_cast<int>(code) - 127);
  }
  auto const format = format_of(dtype);
  if (!format) return std::nullopt;
  std::uint64_t const code = code_of(element);
  double const value = magnitude(*format, code & (sign_bit(*format) - 1));
  return (code & sign_bit(*format)) != 0 ? -value : value;
}

bool is_nearest(DType dtype, std::span<std::byte const> element, double value) {
  auto const format = format_of(dtype);
  RESHARD_EXPECT(format);
  std::uint64_t const code = code_of(element) & (sign_bit(*format) - 1);
  double const here = magnitude(*format, code);
  if (std::isnan(here) || std::isnan(value)) return std::isnan(here) && std::isnan(value);
  bool const negative = (code_of(element) & sign_bit(*format)) != 0;
  if (value != 0 && std::signbit(value) != negative) return false;
  double const wanted = std::abs(value);
  if (wanted == here) return true;
  if (std::isinf(here)) {
    double const largest = magnitude(*format, code - 1);
    return wanted - largest >= half_step(*format, code - 1, true);
  }
  if (std::isinf(wanted)) return false;
  bool const up = wanted > here;
  double const apart = std::abs(wanted - here);
  double const half = half_step(*format, code, up);
  return apart < half || (apart == half && code % 2 == 0);
}

std::string element_text(DType dtype, std::span<std::byte const> element) {
  std::string bytes = "0x";
  for (std::byte const byte : element)
    bytes += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  auto const value = value_of(dtype, element);
  return value ? fmt::format("{} ({})", *value, bytes) : bytes;
}

}  // namespace reshard
