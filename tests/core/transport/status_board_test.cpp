#include "core/transport/monitor/status_board.hpp"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace reshard {
namespace {

TEST(StatusBoard, RankZeroHearsTheLastNumbersOfEveryRank) {
  Comm const comm = Comm::world();
  StatusBoard board(comm);
  auto const mine = static_cast<std::uint64_t>(comm.rank());
  for (std::uint64_t step = 0; step < 100; ++step) board.tell({mine, step});
  board.close({});
  EXPECT_EQ(board.stop(), StopReason::none);
  if (comm.rank() != 0) return;
  for (int r = 0; r < comm.size(); ++r)
    EXPECT_EQ(board.ranks()[static_cast<std::size_t>(r)],
              (StatusBoard::Numbers{static_cast<std::uint64_t>(r), 99}))
        << r;
}

TEST(StatusBoard, WhatOneRankAsksForReachesAll) {
  Comm const comm = Comm::world();
  for (int asking = 0; asking < comm.size(); ++asking) {
    StatusBoard board(comm);
    if (comm.rank() == asking) board.ask_to_stop(StopReason::signal);
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (board.stop() == StopReason::none && std::chrono::steady_clock::now() < end) {
      board.tell({});
      std::this_thread::yield();
    }
    EXPECT_EQ(board.stop(), StopReason::signal) << "asked by rank " << asking;
    board.close([&] { board.tell({}); });
  }
}

TEST(StatusBoard, RanksThatEndedLongAgoAreWaitedFor) {
  Comm const comm = Comm::world();
  StatusBoard board(comm);
  if (comm.rank() == comm.size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  int looked = 0;
  board.close([&] { ++looked; });
  if (comm.rank() == 0 && comm.size() > 1) {
    EXPECT_GT(looked, 1);
  }
}

TEST(StatusBoard, OneThatIsGivenUpDoesNotDisturbTheNext) {
  Comm const comm = Comm::world();
  {
    StatusBoard left(comm);
    left.tell({1, 2});
  }
  StatusBoard board(comm);
  board.tell({5, 6});
  board.close({});
  if (comm.rank() != 0) return;
  for (StatusBoard::Numbers const& numbers : board.ranks())
    EXPECT_EQ(numbers, (StatusBoard::Numbers{5, 6}));
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
