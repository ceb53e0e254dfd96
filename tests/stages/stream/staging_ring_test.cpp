#include "stages/stream/staging_ring.hpp"

#include <algorithm>
#include <deque>
#include <random>

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

struct Block {
  std::byte* begin = nullptr;
  std::uint64_t bytes = 0;
};

bool overlap(Block const& a, Block const& b) {
  return a.bytes > 0 && b.bytes > 0 && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

TEST(StagingRing, BlocksOfRandomSizesNeverOverlap) {
  for (std::uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    StagingRing ring(4096 * (1 + random() % 20));
    std::deque<Block> blocks;
    for (int step = 0; step < 500; ++step) {
      std::uint64_t const bytes = random() % (ring.capacity_bytes() + 1) / (1 + random() % 4);
      auto const begin = ring.take(bytes);
      if (!begin) {
        ASSERT_FALSE(blocks.empty())
            << "an empty ring refused " << bytes << " of " << ring.capacity_bytes();
        ring.give_back_oldest();
        blocks.pop_front();
        continue;
      }
      Block const block{*begin, bytes};
      for (Block const& other : blocks) ASSERT_FALSE(overlap(block, other));
      std::fill_n(block.begin, block.bytes,
                  static_cast<std::byte>(step));  // faults when it is not ours
      blocks.push_back(block);
    }
    EXPECT_LE(ring.high_water_bytes(), ring.capacity_bytes());
  }
}

TEST(StagingRing, ABlockThatDoesNotFitBeforeTheEndBeginsAtTheFront) {
  StagingRing ring(4 * 4096);
  std::byte* const first = *ring.take(3 * 4096);
  EXPECT_FALSE(ring.take(2 * 4096));
  ring.give_back_oldest();
  EXPECT_EQ(ring.take(3 * 4096), first);
  EXPECT_TRUE(ring.take(4096)) << "exactly to the end";
  EXPECT_FALSE(ring.take(1));
  ring.give_back_oldest();
  EXPECT_EQ(ring.take(3 * 4096), first) << "from a full end to the front";
}

TEST(StagingRing, AskingForMoreThanThereIsIsAnErrorOfResources) {
  try {
    StagingRing const ring(std::uint64_t{1} << 46);
    FAIL() << "64 TiB";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resources);
  }
}

}  // namespace
}  // namespace reshard
