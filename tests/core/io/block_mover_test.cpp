#include "core/io/block_mover.hpp"

#include <cerrno>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/random_bytes.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

/// A descriptor that closes itself.
struct Opened {
  Opened(std::filesystem::path const& path, int flags) : number(::open(path.c_str(), flags)) {}
  ~Opened() { ::close(number); }
  Opened(Opened const&) = delete;
  Opened& operator=(Opened const&) = delete;
  int number;
};

class BlockMoverTest : public testing::TestWithParam<std::unique_ptr<BlockMover> (*)()> {
 protected:
  std::unique_ptr<BlockMover> mover_ = GetParam()();
  ScratchFolder folder_{"block_mover"};
};

std::unique_ptr<BlockMover> calls() { return call_mover(); }
INSTANTIATE_TEST_SUITE_P(Movers, BlockMoverTest, testing::Values(&calls, &uring_mover),
                         [](auto const& given) { return given.index == 0 ? "calls" : "uring"; });

/// More pieces than are under way at a time, and a last one that is not whole.
constexpr std::size_t large = (37U << 20) + 12'345;

TEST_P(BlockMoverTest, MovesManyPiecesAtOnce) {
  Bytes const bytes = random_bytes(large, 1);
  Opened const file(folder_.empty_file("a", large + 5), O_RDWR);
  std::size_t done = 0;
  while (done < large) {
    MovedBytes const moved = mover_->write(file.number, 5 + done, std::span(bytes).subspan(done));
    ASSERT_EQ(moved.error, 0);
    ASSERT_GT(moved.bytes, 0U);
    done += moved.bytes;
  }
  Bytes into(large);
  for (done = 0; done < large;) {
    MovedBytes const moved = mover_->read(file.number, 5 + done, std::span(into).subspan(done));
    ASSERT_EQ(moved.error, 0);
    ASSERT_GT(moved.bytes, 0U);
    done += moved.bytes;
  }
  EXPECT_EQ(into, bytes);
}

TEST_P(BlockMoverTest, TheEndOfTheFileEndsATransferWithoutAnError) {
  for (std::size_t const size : {0U, 1U, 3'000'000U, 20'971'520U, 20'971'521U}) {
    Bytes const bytes = random_bytes(size, size);
    Opened const file(folder_.file("a", bytes), O_RDONLY);
    Bytes into(large);
    MovedBytes const moved = mover_->read(file.number, 0, into);
    EXPECT_EQ(moved.bytes, size);
    EXPECT_EQ(moved.error, 0);
    into.resize(size);
    EXPECT_EQ(into, bytes);
    EXPECT_EQ(mover_->read(file.number, size + 100, std::span(into)).bytes, 0U);
  }
}

TEST_P(BlockMoverTest, SaysWhyNothingWasMoved) {
  Bytes bytes = random_bytes(large, 1);
  Opened const full("/dev/full", O_WRONLY);
  MovedBytes moved = mover_->write(full.number, 0, bytes);
  EXPECT_EQ(moved.bytes, 0U);
  EXPECT_EQ(moved.error, ENOSPC);
  moved = mover_->read(full.number, 0, bytes);
  EXPECT_EQ(moved.bytes, 0U);
  EXPECT_EQ(moved.error, EBADF);
}

TEST_P(BlockMoverTest, TakesCallsFromManyThreads) {
  Bytes const bytes = random_bytes(large, 1);
  Opened const file(folder_.file("a", bytes), O_RDONLY);
  std::vector<std::thread> threads;
  std::vector<Bytes> found(4, Bytes(large));
  for (Bytes& into : found)
    threads.emplace_back([&] {
      for (std::size_t done = 0; done < large;) {
        MovedBytes const moved = mover_->read(file.number, done, std::span(into).subspan(done));
        if (moved.bytes == 0) return;
        done += moved.bytes;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (Bytes const& into : found) EXPECT_EQ(into, bytes);
}

TEST(UringMover, MovesByCallsWhereItGetsNoRing) {
  ScratchFolder const folder("block_mover");
  Bytes const bytes = random_bytes(large, 1);
  Opened const file(folder.file("a", bytes), O_RDONLY);
  auto const mover = uring_mover();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit const none{static_cast<rlim_t>(file.number + 1), limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  Bytes into(large);
  MovedBytes const moved = mover->read(file.number, 0, into);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(moved.bytes, large);
  EXPECT_EQ(into, bytes);
  EXPECT_NE(mover->fallback(), "");
}

}  // namespace
}  // namespace reshard
