#include "core/base/hash/crc64.hpp"

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace reshard {
namespace {

using Crc64 = std::uint64_t (*)(std::span<std::byte const>, std::uint64_t);

constexpr std::array<Crc64, 2> both_ways{&crc64, &crc64_by_tables};

std::span<std::byte const> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// The definition, bit by bit.
std::uint64_t slow_crc64(std::span<std::byte const> bytes, std::uint64_t crc) {
  for (std::byte const byte : bytes) {
    crc ^= std::to_integer<std::uint64_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc & 1) != 0 ? (crc >> 1) ^ 0xc96c5795d7870f42U : crc >> 1;
  }
  return crc;
}

std::vector<std::byte> random_bytes(std::mt19937_64& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc64, HasThePublishedCheckValueOnceInverted) {
  // CRC-64/XZ: the same polynomial, register and result inverted. Also for a text that is long
  // enough for every way of computing it.
  for (Crc64 const way : both_ways)
    EXPECT_EQ(~way(bytes_of("123456789"), ~std::uint64_t{0}), 0x995dc9bbdf1939faU);
  std::vector<std::byte> const zeros(4096);
  for (Crc64 const way : both_ways)
    EXPECT_EQ(way(zeros, ~std::uint64_t{0}), slow_crc64(zeros, ~std::uint64_t{0}));
}

TEST(Crc64, AgreesWithTheDefinitionAtEveryLengthAndAddress) {
  std::mt19937_64 random(3);
  auto const bytes = random_bytes(random, 1200);
  for (std::size_t count = 0; count <= 1100; ++count) {
    std::span const part = std::span(bytes).subspan(random() % 64, count);
    std::uint64_t const start = count % 3 == 0 ? 0 : random();
    for (Crc64 const way : both_ways) ASSERT_EQ(way(part, start), slow_crc64(part, start)) << count;
  }
}

TEST(Crc64, ContinuesWhereItStopped) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    auto const bytes = random_bytes(random, random() % 5000);
    std::span const all(bytes);
    std::size_t const cut = random() % (bytes.size() + 1);
    for (Crc64 const way : both_ways)
      ASSERT_EQ(way(all.subspan(cut), way(all.first(cut), 0)), slow_crc64(all, 0));
  }
}

TEST(Crc64Shifted, AgreesWithZerosBehind) {
  std::mt19937_64 random(7);
  for (std::size_t count : {0U, 1U, 2U, 7U, 8U, 64U, 255U, 1000U, 65537U}) {
    std::vector<std::byte> const zeros(count);
    std::uint64_t const crc = random();
    EXPECT_EQ(crc64_shifted(crc, count), slow_crc64(zeros, crc)) << count;
  }
}

TEST(Crc64Shifted, StepsAddUpFarBeyondFourGibibytes) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 200; ++round) {
    std::uint64_t const a = random() >> (1 + random() % 60);
    std::uint64_t const b = random() >> (1 + random() % 60);
    std::uint64_t const crc = random();
    ASSERT_EQ(crc64_shifted(crc64_shifted(crc, a), b), crc64_shifted(crc, a + b))
        << a << " + " << b;
  }
  std::vector<std::byte> const zeros(std::size_t{64} << 20U);
  std::uint64_t crc = 1;
  EXPECT_EQ(crc64_shifted(1, zeros.size()), crc64(zeros, 1));
  for (int step = 0; step < 80; ++step) crc = crc64_shifted(crc, zeros.size());
  EXPECT_EQ(crc64_shifted(1, std::uint64_t{5} << 30U), crc);
}

TEST(Crc64Factor, IsTheProduct) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 50; ++round) {
    std::uint64_t const factor = random();
    Crc64Factor const times(factor);
    for (int i = 0; i < 50; ++i) {
      std::uint64_t const crc = random() >> random() % 64;
      ASSERT_EQ(times(crc), crc64_product(crc, factor));
      ASSERT_EQ(crc64_product(crc, factor), crc64_product(factor, crc));
    }
    EXPECT_EQ(times(crc64_one), factor);
    EXPECT_EQ(times(0), 0U);
  }
}

TEST(Crc64, PartsInAnyOrderXorToTheWhole) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 300; ++round) {
    auto const whole = random_bytes(random, random() % 3000);
    std::vector<std::size_t> cuts{0, whole.size()};
    for (std::size_t i = random() % 9; i > 0; --i) cuts.push_back(random() % (whole.size() + 1));
    std::ranges::sort(cuts);
    std::uint64_t crc = 0;
    for (std::size_t i = cuts.size() - 1; i-- > 0;)
      crc ^= crc64_shifted(crc64(std::span(whole).subspan(cuts[i], cuts[i + 1] - cuts[i])),
                           whole.size() - cuts[i + 1]);
    ASSERT_EQ(crc, slow_crc64(whole, 0)) << "round " << round;
  }
}

}  // namespace
}  // namespace reshard
