#include "core/io/parts_cursor.hpp"

#include <memory>
#include <numeric>
#include <string>

#include <gtest/gtest.h>

namespace reshard {
namespace {

constexpr std::uint64_t block = 4096;

std::string text_of(std::vector<iovec> const& parts) {
  std::string text;
  for (iovec const& part : parts)
    text.append(static_cast<char const*>(part.iov_base), part.iov_len);
  return text;
}

TEST(PartsCursor, WalksThroughPartsOfAnyLength) {
  std::string a = "abc";
  std::string b;
  std::string c = "defgh";
  std::vector<iovec> const parts{{a.data(), a.size()}, {b.data(), b.size()}, {c.data(), c.size()}};
  EXPECT_EQ(bytes_of(parts), 8U);
  PartsCursor cursor(parts);
  EXPECT_EQ(text_of(cursor.take(2)), "ab");
  EXPECT_EQ(text_of(cursor.take(3)), "cde");
  EXPECT_TRUE(cursor.take(0).empty());
  EXPECT_EQ(cursor.done_bytes(), 5U);
  EXPECT_EQ(text_of(cursor.rest()), "fgh");
  EXPECT_TRUE(cursor.rest().empty());
}

TEST(PartsCursor, FillsAndGathersAcrossParts) {
  std::string a = "...";
  std::string b = ".....";
  std::vector<iovec> const parts{{a.data(), a.size()}, {b.data(), b.size()}};
  std::string const from = "12345";
  PartsCursor filled(parts);
  filled.take(1);
  filled.fill(std::as_bytes(std::span(from)));
  EXPECT_EQ(a + b, ".12345..");
  std::string to(4, ' ');
  PartsCursor gathered(parts);
  gathered.take(2);
  gathered.gather(std::as_writable_bytes(std::span(to)));
  EXPECT_EQ(to, "2345");
}

/// Memory whose first byte is at a multiple of the block; nothing is read or written.
std::byte* memory_at(std::uint64_t place) { return reinterpret_cast<std::byte*>(place); }

TEST(TransferSteps, TheExampleOfTheHeader) {
  std::vector<iovec> const parts{{memory_at(8192 + 96), 10000}};
  EXPECT_EQ(
      transfer_steps(96, parts, block, block, block),
      (std::vector<TransferStep>{
          {96, 4096, nullptr}, {4096, 8192, memory_at(8192 + 4096)}, {8192, 10096, nullptr}}));
}

TEST(TransferSteps, WholeBlocksInPlaceAreOneStep) {
  std::vector<iovec> const parts{{memory_at(3 * block), 5 * block}};
  EXPECT_EQ(transfer_steps(2 * block, parts, block, block, block),
            (std::vector<TransferStep>{{2 * block, 7 * block, memory_at(3 * block)}}));
}

TEST(TransferSteps, MemoryOutOfPlaceIsLeftToTheEngine) {
  std::vector<iovec> const parts{{memory_at(3 * block + 64), 5 * block}};
  EXPECT_EQ(transfer_steps(2 * block, parts, block, block, block),
            (std::vector<TransferStep>{{2 * block, 7 * block, nullptr}}));
  EXPECT_EQ(transfer_steps(2 * block, parts, block, 64, block),
            (std::vector<TransferStep>{{2 * block, 7 * block, memory_at(3 * block + 64)}}))
      << "a device that takes memory at multiples of 64";
}

TEST(TransferSteps, ShortStretchesJoinTheirNeighbours) {
  std::vector<iovec> const parts{{memory_at(block), block}, {memory_at(9 * block), 4 * block}};
  EXPECT_EQ(
      transfer_steps(0, parts, block, block, 2 * block),
      (std::vector<TransferStep>{{0, block, nullptr}, {block, 5 * block, memory_at(9 * block)}}));
  EXPECT_EQ(transfer_steps(0, parts, block, block, 8 * block),
            (std::vector<TransferStep>{{0, 5 * block, nullptr}}));
}

TEST(TransferSteps, NothingIsNoStep) {
  EXPECT_TRUE(transfer_steps(77, {}, block, block, block).empty());
  std::vector<iovec> const parts{{nullptr, 0}};
  EXPECT_TRUE(transfer_steps(77, parts, block, block, block).empty());
}

}  // namespace
}  // namespace reshard
