#include "core/quant/number_formats.hpp"

#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/slow_quant.hpp"

namespace reshard {
namespace {

std::uint64_t bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }

void expect_same(double found, double wanted, std::uint32_t code) {
  if (std::isnan(wanted))
    EXPECT_TRUE(std::isnan(found)) << "code " << code;
  else
    EXPECT_EQ(bits_of(found), bits_of(wanted))
        << "code " << code << ": " << found << ", not " << wanted;
}

TEST(Decode, AllCodesOfEightBits) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    expect_same(quant::decode(quant::formats::e4m3, code), slow_e4m3(code), code);
    expect_same(quant::decode(quant::formats::e5m2, code), slow_ieee(5, 2, code), code);
    expect_same(quant::decode_e8m0(static_cast<std::uint8_t>(code)), slow_e8m0(code), code);
  }
}

TEST(Decode, TheLandmarksOfTheSpecifications) {
  // OCP 8-bit floating point, table 1, and OCP microscaling formats, section 5.3.
  EXPECT_EQ(quant::decode(quant::formats::e4m3, 0x7e), 448);
  EXPECT_EQ(quant::decode(quant::formats::e4m3, 0x08), std::ldexp(1, -6));
  EXPECT_EQ(quant::decode(quant::formats::e4m3, 0x01), std::ldexp(1, -9));
  EXPECT_TRUE(std::isnan(quant::decode(quant::formats::e4m3, 0xff)));
  EXPECT_EQ(quant::decode(quant::formats::e5m2, 0x7b), 57344);
  EXPECT_EQ(quant::decode(quant::formats::e5m2, 0x01), std::ldexp(1, -16));
  EXPECT_EQ(quant::decode(quant::formats::e5m2, 0xfc), -INFINITY);
  EXPECT_EQ(quant::decode_e8m0(127), 1);
  EXPECT_EQ(quant::decode_e8m0(0), std::ldexp(1, -127));
}

TEST(Decode, AllSixteenCodesOfE2m1) {
  constexpr std::array<double, 8> sizes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (std::uint32_t code = 0; code < 16; ++code) {
    double const size = sizes[code % 8];
    expect_same(quant::decode(quant::formats::e2m1, code), code < 8 ? size : -size, code);
  }
}

void expect_all_of_16_bits(quant::FloatFormat format) {
  for (std::uint32_t code = 0; code < 65536 && !testing::Test::HasFailure(); ++code) {
    double const value = quant::decode(format, code);
    expect_same(value, slow_ieee(format.exponent_bits, format.fraction_bits, code), code);
    quant::Encoded const back = quant::encode(format, value);
    EXPECT_EQ(back.code, code);
    EXPECT_TRUE(back.exact) << code;
  }
}

TEST(Decode, AllCodesOfF16AndBf16AndBack) {
  expect_all_of_16_bits(quant::formats::f16);
  expect_all_of_16_bits(quant::formats::bf16);
}

TEST(Decode, F32AndF64AreTheMachinesOwn) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 200'000; ++i) {
    auto const code = static_cast<std::uint32_t>(random());
    double const value = quant::decode(quant::formats::f32, code);
    expect_same(value, std::bit_cast<float>(code), code);
    EXPECT_EQ(quant::encode(quant::formats::f32, value).code, code);
    std::uint64_t const wide = random();
    EXPECT_EQ(bits_of(quant::decode(quant::formats::f64, wide)), wide);
    EXPECT_EQ(quant::encode(quant::formats::f64, std::bit_cast<double>(wide)).code, wide);
  }
}

/// Doubles of all sizes, many of them at or beside a border where rounding turns.
double awkward(quant::FloatFormat format, std::mt19937_64& random) {
  std::uint64_t const infinity = quant::encode(format, INFINITY).code;
  std::uint64_t const code = random() % (infinity - 1);
  double const value = quant::decode(format, code);
  double const next = quant::decode(format, code + 1);
  double result = (value + next) / 2;
  if (random() % 3 == 0) result = std::nextafter(result, random() % 2 == 0 ? INFINITY : -INFINITY);
  if (random() % 5 == 0)
    result = std::ldexp(static_cast<double>(random() % 1'000'003),
                        static_cast<int>(random() % 320) - 170);
  return random() % 2 == 0 ? result : -result;
}

void expect_nearest(quant::FloatFormat format, double value) {
  quant::Encoded const found = quant::encode(format, value);
  std::uint16_t const wanted =
      slow_nearest(format.exponent_bits, format.fraction_bits, static_cast<long double>(value));
  EXPECT_EQ(found.code, wanted) << value;
  EXPECT_EQ(found.exact, quant::decode(format, found.code) == value) << value;
}

TEST(Encode, RoundsToTheNearestAndOfTwoToTheEven) {
  std::mt19937_64 random(12);
  for (int i = 0; i < 200'000 && !testing::Test::HasFailure(); ++i) {
    expect_nearest(quant::formats::bf16, awkward(quant::formats::bf16, random));
    expect_nearest(quant::formats::f16, awkward(quant::formats::f16, random));
    double const value = awkward(quant::formats::f32, random);
    EXPECT_EQ(quant::encode(quant::formats::f32, value).code,
              std::bit_cast<std::uint32_t>(static_cast<float>(value)))
        << value;
  }
}

TEST(Encode, TheBordersOfEveryFormat) {
  EXPECT_EQ(quant::encode(quant::formats::f16, 65519.99).code, 0x7bffU);
  EXPECT_EQ(quant::encode(quant::formats::f16, 65520).code, 0x7c00U);
  EXPECT_FALSE(quant::encode(quant::formats::f16, 65520).exact);
  EXPECT_EQ(quant::encode(quant::formats::bf16, std::ldexp(1, -134)).code, 0U)
      << "half of the smallest number: the even one is zero";
  EXPECT_EQ(quant::encode(quant::formats::bf16, std::ldexp(1.0001, -134)).code, 1U);
  EXPECT_EQ(quant::encode(quant::formats::bf16, -std::ldexp(1, -1060)).code, 0x8000U);
  EXPECT_TRUE(quant::encode(quant::formats::bf16, -0.0).exact);
  EXPECT_TRUE(quant::encode(quant::formats::bf16, -INFINITY).exact);
}

TEST(Encode, NansKeepTheirUpperBitsAndStayNans) {
  double const low = std::bit_cast<double>(std::uint64_t{0xfff0000000000001});
  EXPECT_EQ(quant::encode(quant::formats::bf16, low).code, 0xffc0U);
  EXPECT_FALSE(quant::encode(quant::formats::bf16, low).exact);
  double const high = std::bit_cast<double>(std::uint64_t{0x7ffa000000000000});
  EXPECT_EQ(quant::encode(quant::formats::bf16, high).code, 0x7fd0U);
  EXPECT_TRUE(quant::encode(quant::formats::bf16, high).exact);
}

TEST(FloatFormat, IsKnownForTheFloatingDtypes) {
  EXPECT_EQ(quant::float_format(DType::bf16), quant::formats::bf16);
  EXPECT_EQ(quant::float_format(DType::f8_e4m3), quant::formats::e4m3);
  for (DType const dtype : {DType::i32, DType::u8, DType::f8_e8m0, DType::f8_e4m3fnuz, DType::c64})
    EXPECT_FALSE(quant::float_format(dtype));
}

}  // namespace
}  // namespace reshard
