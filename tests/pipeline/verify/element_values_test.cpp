// Values one by one, against the conversions of core/quant.
#include "pipeline/verify/self_check/element_values.hpp"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/quant/convert.hpp"

namespace reshard {
namespace {

template <class Code>
std::span<std::byte const> bytes_of(Code const& code) {
  return std::as_bytes(std::span(&code, 1));
}

TEST(ElementValues, EveryCodeHasTheValueThatConversionsGive) {
  for (DType const dtype : {DType::bf16, DType::f16})
    for (std::uint32_t code = 0; code < 65536; ++code) {
      auto const stored = static_cast<std::uint16_t>(code);
      double expected = 0;
      ASSERT_FALSE(quant::convert(dtype, bytes_of(stored), 0, DType::f64,
                                  std::as_writable_bytes(std::span(&expected, 1))));
      double const found = *value_of(dtype, bytes_of(stored));
      ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected))) << code;
      ASSERT_TRUE(is_nearest(dtype, bytes_of(stored), expected)) << code;
    }
  for (DType const dtype : {DType::f8_e4m3, DType::f8_e5m2})
    for (std::uint32_t code = 0; code < 256; ++code) {
      auto const stored = static_cast<std::uint8_t>(code);
      double expected = 0;
      ASSERT_FALSE(quant::convert(dtype, bytes_of(stored), 0, DType::f64,
                                  std::as_writable_bytes(std::span(&expected, 1))));
      double const found = *value_of(dtype, bytes_of(stored));
      ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected))) << code;
    }
  EXPECT_EQ(*value_of(DType::f8_e8m0, bytes_of(std::uint8_t{129})), 4);
  EXPECT_TRUE(std::isnan(*value_of(DType::f8_e8m0, bytes_of(std::uint8_t{255}))));
  EXPECT_FALSE(value_of(DType::i32, bytes_of(1)));
}

/// F32 values of all magnitudes, ties among them.
std::vector<float> floats() {
  std::mt19937 random(3);
  std::vector<float> values = {0.0F, -0.0F, 65504.0F, 65519.0F, 65520.0F, -65536.0F, 3.4e38F};
  for (int i = 0; i < 20000; ++i) {
    auto code = static_cast<std::uint32_t>(random());
    if (i % 2 == 0) code = (code & 0xffff0000U) | 0x8000U;  // half way between two of BF16
    float value = 0;
    std::memcpy(&value, &code, sizeof value);
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST(ElementValues, TheNearestIsWhatRoundingGivesAndNoOther) {
  std::vector<float> const values = floats();
  for (DType const dtype : {DType::bf16, DType::f16}) {
    std::vector<std::uint16_t> rounded(values.size());
    quant::round_values(std::as_bytes(std::span(values)), dtype,
                        std::as_writable_bytes(std::span(rounded)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(is_nearest(dtype, bytes_of(rounded[i]), values[i])) << values[i];
      auto const above = static_cast<std::uint16_t>(rounded[i] + 1);
      auto const below = static_cast<std::uint16_t>(rounded[i] - 1);
      bool const zero = (rounded[i] & 0x7fffU) == 0;
      ASSERT_FALSE(is_nearest(dtype, bytes_of(above), values[i])) << values[i];
      ASSERT_TRUE(zero || !is_nearest(dtype, bytes_of(below), values[i])) << values[i];
    }
  }
}

TEST(ElementValues, TextsShowValueAndBytes) {
  EXPECT_EQ(element_text(DType::bf16, bytes_of(std::uint16_t{0x3f80})), "1 (0x803f)");
  EXPECT_EQ(element_text(DType::u8, bytes_of(std::uint8_t{7})), "0x07");
}

}  // namespace
}  // namespace reshard
