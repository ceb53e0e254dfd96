#include "core/quant/encode/encode.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/quant/number_formats.hpp"
#include "tests/core/quant/encoded.hpp"

namespace reshard::quant {
namespace {

// A block whose largest is 448 has the scale 1, so that codes are those of its weights.
TEST(EncodeTest, EveryBf16OfAtMost448BecomesTheNearestE4M3) {
  std::vector<std::uint16_t> weights;
  for (std::uint32_t code = 0; code <= bf16_code(448); ++code)
    for (std::uint32_t const sign : {0U, 0x8000U})
      weights.push_back(static_cast<std::uint16_t>(code | sign));
  for (ScaleRule const rule : {ScaleRule::quotient, ScaleRule::power}) {
    Encoding const encoding{CodeKind::e4m3, rule, 1, 0,
                            rule == ScaleRule::power ? DType::u8 : DType::bf16};
    Made const made =
        made_of(encoding, DType::bf16, bytes_of(weights), 1, static_cast<Index>(weights.size()));
    ASSERT_FALSE(made.special);
    // 448 = 1.75 * 2^8: the power of two above it, less 8.
    bool const power = rule == ScaleRule::power;
    if (power)
      EXPECT_EQ(made.scale<std::uint8_t>(0), 128);
    else
      EXPECT_EQ(made.scale<std::uint16_t>(0), bf16_code(1));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      double const value = decode(formats::bf16, weights[i]) / (power ? 2 : 1);
      ASSERT_EQ(made.codes[i], nearest_e4m3(value)) << value;
    }
  }
}

TEST(EncodeTest, MiddlesOfF32GoToTheEvenCode) {
  std::vector<float> weights{448};
  for (unsigned code = 0; code + 1 < 0x7f; ++code) {
    auto const middle =
        static_cast<float>((decode(formats::e4m3, code) + decode(formats::e4m3, code + 1)) / 2);
    weights.push_back(middle);
    weights.push_back(-std::nextafter(middle, 500.0F));
    weights.push_back(std::nextafter(middle, 0.0F));
  }
  Encoding const encoding{CodeKind::e4m3, ScaleRule::quotient, 1, 0, DType::f32};
  Made const made =
      made_of(encoding, DType::f32, bytes_of(weights), 1, static_cast<Index>(weights.size()));
  EXPECT_EQ(made.scale<float>(0), 1.0F);
  for (std::size_t i = 0; i < weights.size(); ++i)
    ASSERT_EQ(made.codes[i], nearest_e4m3(weights[i])) << weights[i];
}

// The quotient is rounded to the dtype of the weights before it becomes a code, as the library
// does.
TEST(EncodeTest, QuotientsAreRoundedToTheDtypeOfTheWeights) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.03F);
  std::vector<std::uint16_t> weights(512);
  for (std::uint16_t& one : weights) one = bf16_code(normal(random));
  Encoding const encoding{CodeKind::e4m3, ScaleRule::quotient, 2, 128, DType::bf16};
  Made const made = made_of(encoding, DType::bf16, bytes_of(weights), 2, 256);
  for (std::size_t block = 0; block < 2; ++block) {
    double largest = 0;
    for (std::size_t i = 0; i < 512; ++i)
      if (i % 256 / 128 == block)
        largest = std::max(largest, std::abs(decode(formats::bf16, weights[i])));
    std::uint16_t const scale = bf16_code(static_cast<float>(largest) / 448.0F);
    EXPECT_EQ(made.scale<std::uint16_t>(block), scale);
    for (std::size_t i = 0; i < 512; ++i)
      if (i % 256 / 128 == block) {
        float const quotient = static_cast<float>(decode(formats::bf16, weights[i])) /
                               static_cast<float>(decode(formats::bf16, scale));
        double const rounded = decode(formats::bf16, bf16_code(quotient));
        ASSERT_EQ(made.codes[i], nearest_e4m3(rounded)) << i;
      }
  }
}

TEST(EncodeTest, BlocksAtTheEndsAreShort) {
  std::vector<float> weights(5 * 7, 1);
  weights[4 * 7 + 6] = 2;
  Encoding const encoding{CodeKind::e4m3, ScaleRule::reciprocal, 4, 4, DType::f32};
  Made const made = made_of(encoding, DType::f32, bytes_of(weights), 5, 7);
  ASSERT_EQ(made.scales.size(), 4 * sizeof(float));
  EXPECT_EQ(made.scale<float>(0), 1 / (1 / 1.0F * 448));
  EXPECT_EQ(made.scale<float>(3), 1 / (1 / 2.0F * 448));
  EXPECT_EQ(made.codes[4 * 7 + 6], 0x7e);
  EXPECT_EQ(made.codes[4 * 7 + 4], nearest_e4m3(224));
}

TEST(EncodeTest, ZerosHaveTheScaleOfTheLibrary) {
  std::vector<std::byte> const zeros(64 * 4);
  auto const scale = [&](Encoding const& encoding, DType dtype, auto kind) {
    Made const made = made_of(encoding, dtype, zeros, 1, 64);
    for (std::uint8_t const code : made.codes)
      EXPECT_EQ(code, encoding.codes == CodeKind::packed ? 0x88 : 0);
    return made.scale<decltype(kind)>(0);
  };
  std::vector<std::byte> const short_zeros(64 * 2);
  auto const of_short = [&](Encoding const& encoding, DType dtype) {
    return made_of(encoding, dtype, short_zeros, 1, 64);
  };
  EXPECT_EQ(scale({CodeKind::e4m3, ScaleRule::quotient, 1, 0, DType::f32}, DType::f32, 0.0F),
            0x1p-23F);
  EXPECT_EQ(scale({CodeKind::packed, ScaleRule::quotient, 1, 32, DType::f32}, DType::f32, 0.0F),
            0x1p-23F);
  EXPECT_EQ(scale({CodeKind::e4m3, ScaleRule::reciprocal, 1, 0, DType::f32}, DType::f32, 0.0F), 1);
  EXPECT_EQ(of_short({CodeKind::e4m3, ScaleRule::quotient, 1, 0, DType::bf16}, DType::bf16)
                .scale<std::uint16_t>(0),
            bf16_code(0x1p-7));
  EXPECT_EQ(of_short({CodeKind::e4m3, ScaleRule::quotient, 1, 0, DType::f16}, DType::f16)
                .scale<std::uint16_t>(0),
            0x1400);  // 2^-10
  EXPECT_EQ(of_short({CodeKind::e4m3, ScaleRule::power, 1, 32, DType::u8}, DType::bf16)
                .scale<std::uint8_t>(1),
            0);
  EXPECT_EQ(of_short({CodeKind::e4m3, ScaleRule::power, 1, 32, DType::u8}, DType::f16)
                .scale<std::uint8_t>(1),
            127);
}

// A scale below the smallest number of the dtype is none.
TEST(EncodeTest, ScalesThatVanishAreThoseOfZeros) {
  std::vector<std::uint16_t> const weights(32, 0x0001);
  Made const made = made_of({CodeKind::e4m3, ScaleRule::quotient, 1, 0, DType::bf16}, DType::bf16,
                            bytes_of(weights), 1, 32);
  EXPECT_EQ(made.scale<std::uint16_t>(0), bf16_code(0x1p-7));
  EXPECT_EQ(made.codes.front(), 0);
}

TEST(EncodeTest, PowersRoundUpFromOneAndThreeQuartersOn) {
  auto const exponent = [](float largest) {
    std::vector<float> weights(32, 0);
    weights[3] = -largest;
    return made_of({CodeKind::e4m3, ScaleRule::power, 1, 32, DType::u8}, DType::f32,
                   bytes_of(weights), 1, 32)
        .scale<std::uint8_t>(0);
  };
  EXPECT_EQ(exponent(1.0F), 119);
  EXPECT_EQ(exponent(std::nextafter(1.75F, 0.0F)), 119);
  EXPECT_EQ(exponent(1.75F), 120);
  EXPECT_EQ(exponent(0x1p-126F), 0);
  EXPECT_EQ(exponent(0x1p-140F), 0);
}

TEST(EncodeTest, E8M0ScalesOfTransformersAreThePowerAbove) {
  auto const scale = [](float largest) {
    std::vector<float> weights(32, 0);
    weights[3] = largest;
    return made_of({CodeKind::e4m3, ScaleRule::reciprocal, 1, 32, DType::f8_e8m0}, DType::f32,
                   bytes_of(weights), 1, 32)
        .scale<std::uint8_t>(0);
  };
  EXPECT_EQ(scale(448), 127);
  EXPECT_EQ(scale(449), 128);
  EXPECT_EQ(scale(896), 128);
  EXPECT_EQ(scale(1), 119);
}

// 8 codes in a word, the first lowest, each plus 8.
TEST(EncodeTest, IntegersArePackedAndRoundedToEven) {
  std::vector<float> const weights{7.5F, -7.5F, 0.5F, 1.5F, 2.5F, -0.5F, -8.5F + 1, 0, -1, 3.49F};
  Made const made = made_of({CodeKind::packed, ScaleRule::quotient, 1, 0, DType::f32}, DType::f32,
                            bytes_of(weights), 1, static_cast<Index>(weights.size()));
  EXPECT_EQ(made.scale<float>(0), 1.0F);
  ASSERT_EQ(made.codes.size(), 8U);
  std::vector<int> codes;
  for (std::uint8_t const byte : made.codes) {
    codes.push_back((byte & 15) - 8);
    codes.push_back((byte >> 4) - 8);
  }
  EXPECT_EQ(codes, (std::vector<int>{7, -8, 0, 2, 2, 0, -8, 0, -1, 3, -8, -8, -8, -8, -8, -8}));
}

/// Two codes of a byte.
std::vector<int> halves(std::vector<std::uint8_t> const& bytes) {
  std::vector<int> codes;
  for (std::uint8_t const byte : bytes) {
    codes.push_back(byte & 15);
    codes.push_back(byte >> 4);
  }
  return codes;
}

// The largest is 6, so that the scale is 1 (power: 6 is 1.5 * 2^2, less 2).
TEST(EncodeTest, MiddlesOfE2M1GoToTheEvenCode) {
  std::vector<float> weights{6, -6, 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5, -0.25F, -0.0F, 0};
  for (float const middle : {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F})
    for (float const end : {0.0F, 6.0F}) weights.push_back(std::nextafter(middle, end));
  std::vector<int> const expected{7, 15, 0, 2, 2, 4, 4, 6, 6, 8, 0, 0, 0,
                                  1, 1,  2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7};
  for (ScaleRule const rule : {ScaleRule::power, ScaleRule::power_above}) {
    Made const made = made_of({CodeKind::e2m1, rule, 1, 32, DType::u8}, DType::f32,
                              bytes_of(weights), 1, static_cast<Index>(weights.size()));
    EXPECT_EQ(made.scale<std::uint8_t>(0), 127);
    std::vector<int> wanted = expected;
    if (rule == ScaleRule::power_above) wanted[10] = 8;  // zeros keep their sign
    EXPECT_EQ(halves(made.codes), wanted);
  }
}

TEST(EncodeTest, PowersAboveAreAtLeastTheQuotient) {
  auto const exponent = [](CodeKind codes, float largest) {
    std::vector<float> const weights(32, -largest);
    return made_of({codes, ScaleRule::power_above, 1, 32, DType::u8}, DType::f32, bytes_of(weights),
                   1, 32)
        .scale<std::uint8_t>(0);
  };
  EXPECT_EQ(exponent(CodeKind::e4m3, 448), 127);
  EXPECT_EQ(exponent(CodeKind::e4m3, 449), 128);
  EXPECT_EQ(exponent(CodeKind::e4m3, 0), 0);
  EXPECT_EQ(exponent(CodeKind::e2m1, 6), 127);
  EXPECT_EQ(exponent(CodeKind::e2m1, 6.1F), 128);
  EXPECT_EQ(exponent(CodeKind::e2m1, 3), 126);
}

TEST(EncodeTest, IntegersOfEightBitsArePackedOrBytes) {
  std::vector<float> const weights{127.5F, -127.5F, 0.5F, 1.5F, -0.5F};
  Made const packed = made_of({CodeKind::packed, ScaleRule::quotient, 1, 0, DType::f32, 8},
                              DType::f32, bytes_of(weights), 1, 5);
  EXPECT_EQ(packed.scale<float>(0), 1.0F);
  EXPECT_EQ(packed.codes, (std::vector<std::uint8_t>{255, 0, 128, 130, 128, 0, 0, 0}));
  Made const plain = made_of({CodeKind::i8, ScaleRule::quotient, 1, 0, DType::f32, 8}, DType::f32,
                             bytes_of(weights), 1, 5);
  EXPECT_EQ(plain.codes, (std::vector<std::uint8_t>{127, 0x80, 0, 2, 0}));
}

TEST(EncodeTest, SecondScalesAreOfAllWeightsTogether) {
  std::vector<float> weights(32, 0);
  weights[0] = 3;
  weights[1] = -1.5F;
  std::vector<std::byte> codes(16);
  std::vector<std::byte> scales(2);
  Encoding encoding{CodeKind::e2m1, ScaleRule::times, 1, 16, DType::f8_e4m3};
  EXPECT_EQ(second_scale(encoding, DType::f32, 2688), 1.0F);
  ASSERT_FALSE(Encoder(encoding, DType::f32, 32)
                   .run(1, std::as_bytes(std::span(weights)), codes, scales, 2688));
  EXPECT_EQ(scales, (std::vector<std::byte>{std::byte{0x30}, std::byte{0x38}}));  // 0.5; zeros: 1
  EXPECT_EQ(codes[0], std::byte{0xd7});                                           // 6, -3
  encoding.rule = ScaleRule::divided;
  EXPECT_EQ(second_scale(encoding, DType::bf16, 3), 896.0F);
  EXPECT_EQ(second_scale(encoding, DType::f32, 0), 1.0F);
  ASSERT_FALSE(Encoder(encoding, DType::f32, 32)
                   .run(1, std::as_bytes(std::span(weights)), codes, scales, 3));
  EXPECT_EQ(scales, (std::vector<std::byte>{std::byte{0x7e}, std::byte{0x20}}));
  EXPECT_EQ(codes[0], std::byte{0xd7});
  EXPECT_EQ(largest_of(DType::f32, std::as_bytes(std::span(weights))).magnitude, 3.0F);
}

TEST(EncodeTest, InfinityAndNanAreReturnedWithTheirPlace) {
  for (float const odd :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> weights(6 * 8, 1);
    weights[4 * 8 + 5] = odd;
    Made const made = made_of({CodeKind::e4m3, ScaleRule::quotient, 2, 4, DType::f32}, DType::f32,
                              bytes_of(weights), 6, 8);
    ASSERT_TRUE(made.special);
    EXPECT_EQ(made.special->element, 4 * 8 + 5U);
  }
}

}  // namespace
}  // namespace reshard::quant
