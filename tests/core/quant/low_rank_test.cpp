#include "core/quant/low_rank.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "core/quant/number_formats.hpp"

namespace reshard::quant {
namespace {

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-2, 2);
  std::vector<float> result(count);
  for (float& value : result) value = values(random);
  return result;
}

/// The formula of the header, one rounding after the other.
float slow_product(std::vector<float> const& rows, std::vector<float> const& columns, Index rank,
                   Index i, Index j) {
  float volatile sum = 0;
  for (Index k = 0; k < rank; ++k) {
    float const volatile product = rows[static_cast<std::size_t>(i * rank + k)] *
                                   columns[static_cast<std::size_t>(j * rank + k)];
    sum = sum + product;
  }
  return sum;
}

TEST(LowRankProducts, AreTheSumsInTheOrderOfRanks) {
  for (Index const rank : {1, 3, 8, 17}) {
    Index const rows = 37;
    Index const columns = 53;
    auto const b = random_values(static_cast<std::size_t>(rows * rank), 1);
    auto const a = random_values(static_cast<std::size_t>(columns * rank), 2);
    Panels const panels(a, columns, rank);
    std::vector<float> to(static_cast<std::size_t>(rows * columns));
    low_rank_products(b.data(), rank, rows, panels, 0, columns, to.data(), columns);
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(to[static_cast<std::size_t>(i * columns + j)]),
                  std::bit_cast<std::uint32_t>(slow_product(b, a, rank, i, j)))
            << rank << ": " << i << ", " << j;
  }
}

TEST(LowRankProducts, AreTheSameInAnyCut) {
  Index const rank = 5;
  Index const rows = 40;
  Index const columns = 70;
  auto const b = random_values(rows * rank, 3);
  auto const a = random_values(columns * rank, 4);
  Panels const panels(a, columns, rank);
  for (Index const first : {0, 1, 15, 16, 17, 40})
    for (Index const count : {1, 2, 16, 30})
      for (Index const height : {1, 3, 20}) {
        std::vector<float> to(static_cast<std::size_t>(height * count));
        low_rank_products(b.data() + 2 * rank, 2 * rank, height / 2 + 1, panels, first, count,
                          to.data(), count);
        for (Index i = 0; i < height / 2 + 1 && i < height; ++i)
          for (Index j = 0; j < count; ++j)
            ASSERT_EQ(to[static_cast<std::size_t>(i * count + j)],
                      slow_product(b, a, rank, 2 + 2 * i, first + j));
      }
}

TEST(Widen, GivesEveryValueOfF16AndBf16) {
  for (auto const& [dtype, format] :
       {std::pair{DType::f16, formats::f16}, std::pair{DType::bf16, formats::bf16}})
    for (unsigned code = 0; code < 0x10000; ++code) {
      auto const stored = static_cast<std::uint16_t>(code);
      float value = 0;
      widen(dtype, reinterpret_cast<std::byte const*>(&stored), 1, 1, &value, 1);
      double const expected = decode(format, code);
      if (std::isnan(expected))
        ASSERT_TRUE(std::isnan(value)) << code;
      else
        ASSERT_EQ(value, expected) << code;
      ASSERT_EQ(std::signbit(value), (code & 0x8000U) != 0) << code;
    }
}

TEST(AddScaled, RoundsTheSumOnce) {
  std::size_t const count = 4001;
  auto const weights = random_values(count, 5);
  auto const delta = random_values(count, 6);
  float const scale = 0.3F;
  for (auto const& [dtype, format] :
       {std::pair{DType::f16, formats::f16}, std::pair{DType::bf16, formats::bf16}}) {
    std::vector<std::uint16_t> stored(2 * count);
    for (std::size_t i = 0; i < count; ++i)
      stored[2 * i] = static_cast<std::uint16_t>(encode(format, weights[i]).code);
    std::vector<std::uint16_t> const before = stored;
    add_scaled(dtype, reinterpret_cast<std::byte*>(stored.data()), 2, count, delta.data(), scale);
    for (std::size_t i = 0; i < count; ++i) {
      float const volatile product = scale * delta[i];
      float const volatile sum = static_cast<float>(decode(format, before[2 * i])) + product;
      ASSERT_EQ(stored[2 * i], encode(format, static_cast<double>(sum)).code) << i;
      ASSERT_EQ(stored[2 * i + 1], 0) << "what lies between stays";
    }
  }
  std::vector<float> stored = weights;
  add_scaled(DType::f32, reinterpret_cast<std::byte*>(stored.data()), 1, count, delta.data(),
             scale);
  for (std::size_t i = 0; i < count; ++i) {
    float const volatile product = scale * delta[i];
    ASSERT_EQ(stored[i], weights[i] + product);
  }
}

TEST(AddScaled, GivesTheCanonicalNan) {
  float const infinity = std::numeric_limits<float>::infinity();
  std::vector<std::uint32_t> f32{0xffffffffU, 0x7f800000U, 0x7f800000U};
  std::vector<float> const delta{1, -infinity, 1};
  add_scaled(DType::f32, reinterpret_cast<std::byte*>(f32.data()), 1, 3, delta.data(), 1);
  EXPECT_EQ(f32, (std::vector<std::uint32_t>{0x7fc00000U, 0x7fc00000U, 0x7f800000U}));
  std::vector<std::uint16_t> f16{0xffff};
  add_scaled(DType::f16, reinterpret_cast<std::byte*>(f16.data()), 1, 1, delta.data(), 1);
  EXPECT_EQ(f16.front(), 0x7e00);
}

TEST(AddScaled, TellsTheFirstFiniteWeightThatIsLost) {
  float const infinity = std::numeric_limits<float>::infinity();
  std::vector<std::uint16_t> bf16{0x7f80, 0x3f80, 0x3f80, 0x3f80};  // infinite, 1, 1, 1
  auto const add = [&](std::vector<float> const& delta, float scale) {
    std::vector<std::uint16_t> weights = bf16;
    return add_scaled(DType::bf16, reinterpret_cast<std::byte*>(weights.data()), 1, 4, delta.data(),
                      scale);
  };
  EXPECT_EQ(add({1, 1, 1, 1}, 1), std::nullopt) << "the infinite one was so before";
  EXPECT_EQ(add({1, 1, infinity, 1}, 1), 2);
  EXPECT_EQ(add({1, 1, infinity, 1}, 0), 2) << "no number";
  EXPECT_EQ(add({1, 2, 1, 1}, 3e38F), 1);
  EXPECT_EQ(add({1, 1, 1, 3.4e38F}, 1), 3) << "finite in F32, and not when rounded to BF16";
  std::vector<std::uint16_t> f16{0x3c00, 0, 0x3c00};
  std::vector<float> const delta{1, 70000};
  EXPECT_EQ(add_scaled(DType::f16, reinterpret_cast<std::byte*>(f16.data()), 2, 2, delta.data(), 1),
            1);
  std::vector<float> f32{3e38F};
  EXPECT_EQ(add_scaled(DType::f32, reinterpret_cast<std::byte*>(f32.data()), 1, 1, delta.data(), 1),
            std::nullopt);
}

}  // namespace
}  // namespace reshard::quant
