#include "core/quant/cast.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace reshard::quant {
namespace {

/// Every finite value of a 16-bit format, by its code without the sign: ascending. By the
/// definition of the format, not by the code under test.
std::vector<double> values_of(int exponent_bits, int fraction_bits) {
  std::vector<double> values;
  int const bias = (1 << (exponent_bits - 1)) - 1;
  for (int exponent = 0; exponent < (1 << exponent_bits) - 1; ++exponent)
    for (int fraction = 0; fraction < 1 << fraction_bits; ++fraction) {
      double const digits = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
      values.push_back(std::ldexp(digits, std::max(exponent, 1) - bias - fraction_bits));
    }
  return values;
}

struct Format {
  DType dtype;
  std::vector<double> values;
  std::uint16_t infinity;
  std::uint16_t nan;
};
Format const& bf16() {
  static Format const format{DType::bf16, values_of(8, 7), 0x7f80, 0x7fc0};
  return format;
}
Format const& f16() {
  static Format const format{DType::f16, values_of(5, 10), 0x7c00, 0x7e00};
  return format;
}

double value_of(Format const& format, std::uint16_t code) {
  std::uint16_t const size = code & 0x7fffU;
  double value = std::numeric_limits<double>::quiet_NaN();
  if (size == format.infinity) value = std::numeric_limits<double>::infinity();
  if (size < format.infinity) value = format.values[size];
  return (code & 0x8000U) != 0 ? -value : value;
}

/// The nearest code, of two the even one; infinity from half a step beyond the largest on.
std::uint16_t nearest(Format const& format, double value) {
  auto const sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000U : 0U);
  double const size = std::abs(value);
  if (std::isinf(size)) return sign | format.infinity;
  auto const& values = format.values;
  auto const above = static_cast<std::size_t>(std::lower_bound(values.begin(), values.end(), size) -
                                              values.begin());
  if (above == 0) return sign;
  double const low = values[above - 1];
  double const high = above < values.size() ? values[above] : 2 * low - values[above - 2];
  double const middle = low / 2 + high / 2;
  bool const up = size > middle || (size == middle && above % 2 == 0);
  return static_cast<std::uint16_t>(sign | (up ? above : above - 1));
}

template <class To, class From>
std::optional<Inexact> cast(DType stored, std::vector<From> const& from, DType wanted,
                            std::vector<To>& to, double constant = 0) {
  to.assign(from.size(), To{});
  return cast_values(stored, std::as_bytes(std::span(from)), constant, wanted,
                     std::as_writable_bytes(std::span(to)));
}

/// Values of F32 around every boundary between two codes, ties and their neighbours.
std::vector<std::uint32_t> chosen() {
  std::vector<std::uint32_t> codes;
  for (std::uint32_t high = 0; high < 0x10000; ++high)
    for (std::uint32_t const low : {0U, 1U, 0x0fffU, 0x1000U, 0x1001U, 0x2fffU, 0x3000U, 0x3001U,
                                    0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      codes.push_back(high << 16U | low);
  std::mt19937 random(20261130);
  for (int i = 0; i < 200'000; ++i) codes.push_back(static_cast<std::uint32_t>(random()));
  return codes;
}

TEST(CastValues, RoundsF32ToTheNearestAndRefusesOnlyWhatOverflows) {
  for (Format const* const format : {&bf16(), &f16()}) {
    std::vector<std::uint32_t> fits;
    for (std::uint32_t const code : chosen()) {
      auto const value = static_cast<double>(std::bit_cast<float>(code));
      std::vector<std::uint16_t> one;
      bool const overflows =
          std::isfinite(value) && (nearest(*format, value) & 0x7fffU) == format->infinity;
      if (!overflows) {
        fits.push_back(code);
        continue;
      }
      auto const inexact = cast(DType::f32, std::vector{code}, format->dtype, one);
      ASSERT_TRUE(inexact) << std::hex << code;
      EXPECT_EQ(inexact->value, value);
    }
    std::vector<std::uint16_t> to;
    ASSERT_FALSE(cast(DType::f32, fits, format->dtype, to));
    for (std::size_t i = 0; i < fits.size(); ++i) {
      auto const value = static_cast<double>(std::bit_cast<float>(fits[i]));
      if (std::isnan(value))
        ASSERT_TRUE(std::isnan(value_of(*format, to[i]))) << std::hex << fits[i];
      else
        ASSERT_EQ(to[i], nearest(*format, value)) << std::hex << fits[i];
    }
  }
}

TEST(CastValues, EveryCodeOf16BitsWidensExactly) {
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (Format const* const format : {&bf16(), &f16()}) {
    std::vector<std::uint32_t> to;
    ASSERT_FALSE(cast(format->dtype, all, DType::f32, to));
    for (std::size_t i = 0; i < all.size(); ++i) {
      double const value = value_of(*format, all[i]);
      auto const got = static_cast<double>(std::bit_cast<float>(to[i]));
      if (std::isnan(value))
        ASSERT_TRUE(std::isnan(got)) << std::hex << i;
      else
        ASSERT_EQ(std::bit_cast<std::uint64_t>(got), std::bit_cast<std::uint64_t>(value))
            << std::hex << i;
    }
  }
}

TEST(CastValues, EveryCodeOf16BitsBecomesTheNearestOfTheOtherFormat) {
  for (auto const& [from, into] : {std::pair(&bf16(), &f16()), std::pair(&f16(), &bf16())})
    for (std::uint32_t code = 0; code < 0x10000; ++code) {
      std::vector const one{static_cast<std::uint16_t>(code)};
      std::vector<std::uint16_t> to;
      auto const inexact = cast(from->dtype, one, into->dtype, to);
      double const value = value_of(*from, one.front());
      bool const overflows =
          std::isfinite(value) && (nearest(*into, value) & 0x7fffU) == into->infinity;
      ASSERT_EQ(inexact.has_value(), overflows) << std::hex << code;
      if (overflows) continue;
      if (std::isnan(value))
        ASSERT_TRUE(std::isnan(value_of(*into, to.front()))) << std::hex << code;
      else
        ASSERT_EQ(to.front(), nearest(*into, value)) << std::hex << code;
    }
}

TEST(CastValues, NamesTheFirstThatOverflowsBeyondABlock) {
  std::vector<float> from(5000, 1.5F);
  from[4100] = 70000;
  from[4700] = -70000;
  std::vector<std::uint16_t> to;
  auto const inexact = cast(DType::f32, from, DType::f16, to);
  ASSERT_TRUE(inexact);
  EXPECT_EQ(inexact->element, 4100U);
  EXPECT_EQ(inexact->value, 70000);
  EXPECT_FALSE(cast(DType::f32, from, DType::bf16, to));
  from[4100] = 65519.996F;
  from[4700] = -std::numeric_limits<float>::infinity();
  ASSERT_FALSE(cast(DType::f32, from, DType::f16, to));
  EXPECT_EQ(to[4100], 0x7bff);
  EXPECT_EQ(to[4700], 0xfc00);
}

/// torch rounds F64 twice: 1 + 2^-8 + 2^-30 is the tie 1 + 2^-8 as F32, and 1 as BF16.
TEST(CastValues, RoundsF64ByWayOfF32) {
  std::vector<double> const from{1 + 0x1p-8 + 0x1p-30, -0.0, 0x1p-200};
  std::vector<std::uint16_t> to;
  ASSERT_FALSE(cast(DType::f64, from, DType::bf16, to));
  EXPECT_EQ(to, (std::vector<std::uint16_t>{0x3f80, 0x8000, 0}));
  std::vector<std::uint32_t> wide;
  EXPECT_TRUE(cast(DType::f64, std::vector{1e300}, DType::f32, wide));
}

TEST(CastValues, RoundsTheExactSumOnce) {
  std::vector<float> const from{0x1p-9F, -1.0F, 0x1p-8F + 0x1p-20F};
  std::vector<std::uint16_t> to;
  ASSERT_FALSE(cast(DType::f32, from, DType::bf16, to, 1));
  EXPECT_EQ(to, (std::vector<std::uint16_t>{0x3f80, 0x0000, 0x3f81}));
}

}  // namespace
}  // namespace reshard::quant
