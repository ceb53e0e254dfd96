#include "core/quant/rounded.hpp"

#include <gtest/gtest.h>

#include <random>

#include "core/quant/number_formats.hpp"

namespace reshard::quant {
namespace {

bool is_nan(std::uint32_t f32) { return (f32 & 0x7fffffffU) > 0x7f800000U; }

std::uint64_t expected(FloatFormat format, std::uint32_t f32) {
  return encode(format, decode(formats::f32, f32)).code;
}

TEST(Rounded, TiesGoToTheEvenNeighbour) {
  EXPECT_EQ(bf16_of(0x3f808000), 0x3f80);
  EXPECT_EQ(bf16_of(0x3f818000), 0x3f82);
  EXPECT_EQ(bf16_of(0x3f808001), 0x3f81);
  EXPECT_EQ(bf16_of(0x7f7fffff), 0x7f80) << "beyond the largest number";
  EXPECT_EQ(bf16_of(0x7f800001), 0x7fc0) << "a NaN stays one";
  EXPECT_EQ(f16_of(0x477fefff), 0x7bff) << "65519.996";
  EXPECT_EQ(f16_of(0x477ff000), 0x7c00) << "65520 is half way";
  EXPECT_EQ(f16_of(0x33000000), 0x0000) << "half the smallest number";
  EXPECT_EQ(f16_of(0x33000001), 0x0001);
  EXPECT_EQ(f16_of(0xffc00000), 0xfe00);
}

TEST(Rounded, AgreesWithTheGeneralEncoder) {
  std::mt19937 random(20261124);
  for (std::uint32_t exponent = 0; exponent < 512; ++exponent)
    for (int i = 0; i < 2000; ++i) {
      std::uint32_t const low = i % 4 == 0 ? 0x8000U * (random() & 0xffU) : random();
      std::uint32_t const f32 = exponent << 23U | (low & 0x7fffffU);
      if (is_nan(f32)) continue;
      ASSERT_EQ(bf16_of(f32), expected(formats::bf16, f32)) << std::hex << f32;
      ASSERT_EQ(f16_of(f32), expected(formats::f16, f32)) << std::hex << f32;
    }
}

}  // namespace
}  // namespace reshard::quant
