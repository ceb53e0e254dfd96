#include "core/transport/monitor/patience.hpp"

#include <ctime>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/transport/ring_order.hpp"

namespace reshard {
namespace {

double seconds_until_it_ends(Patience& patience) {
  auto const begin = std::chrono::steady_clock::now();
  while (patience.wait()) {
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(Patience, EndsAfterTheTimeoutAndCountsWhatItWaited) {
  int calls = 0;
  auto const begin = std::chrono::steady_clock::now();  // its clock runs from its making on
  Patience patience(0.05, [&] { ++calls; });
  seconds_until_it_ends(patience);
  double const seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(seconds, 0.05);
  EXPECT_GT(calls, 10);
  EXPECT_GT(patience.waited_seconds(), 0.02);
  EXPECT_LE(patience.waited_seconds(), seconds);
}

TEST(Patience, BeginsAnewWhenSomethingMoves) {
  Patience patience(0.5, {});
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    EXPECT_TRUE(patience.wait()) << i;
    patience.begin();
  }
  EXPECT_GE(seconds_until_it_ends(patience), 0.5);
  EXPECT_FALSE(patience.wait());
}

TEST(Patience, SleepsOnceItHasBeenEager) {
  Patience patience(0.3, {});
  std::clock_t const before = std::clock();
  double const seconds = seconds_until_it_ends(patience);
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.8 * seconds)
      << "waiting takes a whole core";
}

TEST(Patience, IsEndedByWhoeverIsAskedMeanwhile) {
  Patience patience(100, [] { throw Error(ErrorKind::interrupted, "stopped"); });
  EXPECT_THROW(static_cast<void>(patience.wait()), Error);
}

TEST(Stalled, NamesTheRanks) {
  Error const error = stalled(2.5, awaited_text(std::vector<int>{1, 3}));
  EXPECT_EQ(error.kind(), ErrorKind::stall);
  EXPECT_EQ(
      error.sentence(),
      "no message was received or sent for 2.5 s. Still waiting for messages from or to ranks 1, "
      "3. Check those ranks and their hosts, then run again.");
  EXPECT_EQ(awaited_text(std::vector<int>{4}), " from or to rank 4");
}

TEST(RingOrder, BeginsWithTheNeighbourAndKeepsTheOrderOfEachPeer) {
  std::vector<FlatMessage> messages;
  for (int const peer : {0, 3, 4, 0, 1, 3}) messages.push_back({peer, nullptr, 1});
  EXPECT_EQ(ring_order(messages, 2, 5, RingDirection::up),
            (std::vector<std::size_t>{1, 5, 2, 0, 3, 4}));
  EXPECT_EQ(ring_order(messages, 2, 5, RingDirection::down),
            (std::vector<std::size_t>{4, 0, 3, 2, 1, 5}));
  EXPECT_TRUE(ring_order({}, 0, 1, RingDirection::up).empty());
}

TEST(RingOrder, EveryRankBeginsWithAnotherPeer) {
  for (int ranks = 2; ranks <= 7; ++ranks)
    for (RingDirection const direction : {RingDirection::up, RingDirection::down}) {
      std::vector<int> first(static_cast<std::size_t>(ranks), 0);
      for (int me = 0; me < ranks; ++me) {
        std::vector<FlatMessage> messages;
        for (int peer = 0; peer < ranks; ++peer)
          if (peer != me) messages.push_back({peer, nullptr, 1});
        ++first[static_cast<std::size_t>(
            messages[ring_order(messages, me, ranks, direction)[0]].peer)];
      }
      EXPECT_EQ(first, std::vector<int>(static_cast<std::size_t>(ranks), 1));
    }
}

}  // namespace
}  // namespace reshard
