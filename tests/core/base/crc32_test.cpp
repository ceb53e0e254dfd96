#include "core/base/hash/crc32.hpp"

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace reshard {
namespace {

std::span<std::byte const> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// The definition, bit by bit.
std::uint32_t slow_crc32(std::span<std::byte const> bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (std::byte const byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0xedb88320U : crc >> 1;
  }
  return ~crc;
}

std::vector<std::byte> random_bytes(std::mt19937_64& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32, HasThePublishedCheckValue) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926U);
  EXPECT_EQ(crc32({}), 0U);
}

TEST(Crc32, AgreesWithTheDefinitionAndContinues) {
  std::mt19937_64 random(7);
  for (std::size_t count : {1U, 2U, 15U, 16U, 63U, 64U, 65U, 1000U, 4099U}) {
    auto const bytes = random_bytes(random, count);
    std::span const all(bytes);
    EXPECT_EQ(crc32(all), slow_crc32(all)) << count;
    std::size_t const cut = random() % (count + 1);
    EXPECT_EQ(crc32(all.subspan(cut), crc32(all.first(cut))), crc32(all))
        << count << " cut at " << cut;
    EXPECT_EQ(crc32({}, crc32(all)), crc32(all));
  }
}

TEST(Crc32ShareOf, IsThatOfTheBytes) {
  std::mt19937_64 random(8);
  for (std::size_t count : {0U, 1U, 64U, 4099U}) {
    auto const bytes = random_bytes(random, count);
    for (std::uint64_t after : {0U, 1U, 1000U})
      EXPECT_EQ(crc32_share_of(crc32(bytes), count, after), crc32_share(bytes, after)) << count;
  }
}

TEST(Crc32OfZeros, AgreesWithCountingThem) {
  for (std::size_t count : {0U, 1U, 2U, 3U, 64U, 255U, 1000U, 65537U}) {
    std::vector<std::byte> const zeros(count);
    EXPECT_EQ(crc32_of_zeros(count), crc32(zeros)) << count;
  }
}

TEST(Crc32OfZeros, ReachesBeyondFourGibibytes) {
  // Five GiB in 64 MiB steps, continued; 2^63 only has to return.
  std::vector<std::byte> const zeros(64U << 20);
  std::uint32_t crc = 0;
  for (int step = 0; step < 80; ++step) crc = crc32(zeros, crc);
  EXPECT_EQ(crc32_of_zeros(std::uint64_t{5} << 30), crc);
  EXPECT_NE(crc32_of_zeros(std::uint64_t{1} << 63), 0U);
}

TEST(Crc32Share, PiecesInAnyOrderMakeTheWhole) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    auto const whole = random_bytes(random, random() % 3000);
    std::vector<std::size_t> cuts{0, whole.size()};
    for (std::size_t i = random() % 9; i > 0; --i) cuts.push_back(random() % (whole.size() + 1));
    std::ranges::sort(cuts);
    std::vector<std::size_t> order(cuts.size() - 1);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, random);
    std::uint32_t crc = crc32_of_zeros(whole.size());
    for (std::size_t const i : order)
      crc ^= crc32_share(std::span(whole).subspan(cuts[i], cuts[i + 1] - cuts[i]),
                         whole.size() - cuts[i + 1]);
    ASSERT_EQ(crc, crc32(whole)) << "round " << round;
  }
}

TEST(Crc32Share, APieceOfZerosAddsNothing) {
  std::vector<std::byte> const zeros(100);
  EXPECT_EQ(crc32_share(zeros, 12345), 0U);
  EXPECT_EQ(crc32_share({}, 1), 0U);
}

TEST(Crc32Pieces, AreTheSharesOfTheirPieces) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 300; ++round) {
    auto const whole = random_bytes(random, 1 + random() % 3000);
    Crc32Pieces pieces(whole.size());
    std::uint32_t expected = 0;
    std::size_t at = random() % 50;
    for (int piece = 0; piece < 20; ++piece) {
      if (random() % 6 == 0) at = random() % whole.size();  // back or ahead
      std::size_t const begin = std::min(at, whole.size());
      std::size_t const end = std::min(begin + random() % 90, whole.size());
      auto const bytes = std::span(whole).subspan(begin, end - begin);
      pieces.add(begin, bytes);
      expected ^= crc32_share(bytes, whole.size() - end);
      at = end + (random() % 2 == 0 ? 7 : random() % 40);
    }
    ASSERT_EQ(pieces.share(), expected) << round;
  }
}

}  // namespace
}  // namespace reshard
