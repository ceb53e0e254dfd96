// NCCL's transport where NCCL is slow, fails or hangs: with a stand-in for it on emulated devices.

#include "core/transport/nccl/nccl_transport.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "core/base/tables/counted.hpp"
#include "core/transport/monitor/patience.hpp"
#include "tests/support/fake_nccl.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t message_bytes = 100'000;

/// This rank's part in a job whose ranks stand in a ring.
class NcclTransportTest : public testing::Test {
 protected:
  void TearDown() override {
    transport_.reset();
    nccl_.reset();
    comm_.barrier();
  }

  bool last() const { return comm_.rank() == comm_.size() - 1; }
  int next() const { return (comm_.rank() + 1) % comm_.size(); }
  int previous() const { return (comm_.rank() + comm_.size() - 1) % comm_.size(); }
  bool alone() const { return comm_.size() == 1; }

  NcclRankFacts facts() const {
    NcclRankFacts facts;
    facts.host = facts.host_identity = "here";
    facts.device_id = device_->id();
    facts.nccl_version = 22809;
    return facts;
  }

  void connect(FakeNcclFaults const& faults, double timeout_seconds = 60) {
    connect_with(facts(), faults, timeout_seconds);
  }
  void connect_with(NcclRankFacts const& mine, FakeNcclFaults const& faults,
                    double timeout_seconds) {
    nccl_ = std::make_shared<FakeNccl>(faults);
    transport_ = make_nccl_transport(comm_, nccl_, mine, stream_.get(), timeout_seconds);
  }

  /// One message to the next rank, one from the one before.
  void post(std::size_t number) {
    std::byte* const at = memory_->data();
    std::vector<FlatMessage> const receive = {{previous(), at, message_bytes}};
    std::vector<FlatMessage> const send = {{next(), at + message_bytes, message_bytes}};
    transport_->post(receive, send, number);
  }

  std::vector<Landed> wait_for(std::size_t count) {
    std::vector<Landed> landed;
    Patience patience(30, {});
    while (landed.size() < count) {
      transport_->poll(landed);
      if (!patience.wait()) {
        ADD_FAILURE() << "only " << landed.size() << " of " << count << " messages landed";
        break;
      }
    }
    return landed;
  }

  /// That `work` fails on every rank with the same sentence, in less than `seconds`.
  Error same_error(std::function<void()> const& work, double seconds = 20) const {
    auto const begin = Clock::now();
    std::optional<Error> const error = capture(work);
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), seconds);
    if (!error) {
      ADD_FAILURE() << "nothing was thrown";
      return {ErrorKind::internal, ""};
    }
    for (std::string const& sentence : comm_.all_gather(error->sentence()))
      EXPECT_EQ(sentence, error->sentence());
    EXPECT_EQ(comm_.min(static_cast<int>(error->kind())), static_cast<int>(error->kind()));
    return *error;
  }

  static bool has(Error const& error, std::string_view text) {
    return error.sentence().find(text) != std::string::npos;
  }

  Comm comm_ = Comm::world();
  std::unique_ptr<Device> device_ = make_emulated_device();
  std::unique_ptr<DeviceStream> stream_ = device_->new_stream();
  std::unique_ptr<DeviceMemory> memory_ = device_->allocate(2 * message_bytes);
  std::shared_ptr<FakeNccl> nccl_;
  std::unique_ptr<Transport> transport_;
};

TEST_F(NcclTransportTest, APostWaitsUntilTheOneBeforeItIsInTheStream) {
  if (alone()) GTEST_SKIP() << "one rank has no messages";
  FakeNcclFaults faults;
  faults.launching_time = std::chrono::milliseconds(250);
  connect(faults);
  auto const begin = Clock::now();
  for (std::size_t i = 0; i < 4; ++i) post(2 * i);
  EXPECT_LE(nccl_->groups(), 2);
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(700)) << "post() waits for NCCL";
  auto const landed = wait_for(8);
  std::vector<std::size_t> numbers;
  for (Landed const& one : landed) numbers.push_back(one.number);
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  EXPECT_EQ(std::set<std::size_t>(numbers.begin(), numbers.end()).size(), 8U);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(1000));
  EXPECT_EQ(nccl_->groups(), 4);
  EXPECT_EQ(nccl_->misuses(), 0) << nccl_->last_error();
}

TEST_F(NcclTransportTest, TakesLeaveAfterACleanRun) {
  connect({});
  if (!alone()) {
    post(0);
    wait_for(2);
  }
  comm_.barrier();
  transport_.reset();
  EXPECT_EQ(nccl_->destroyed(), 1);
  EXPECT_EQ(nccl_->aborts(), 0);
  EXPECT_EQ(nccl_->misuses(), 0) << nccl_->last_error();
}

TEST_F(NcclTransportTest, AbortsWhenLeaveCannotBeTaken) {
  FakeNcclFaults faults;
  faults.never_finalizes = true;
  connect(faults, 0.5);
  transport_.reset();
  EXPECT_EQ(nccl_->destroyed(), 0);
  EXPECT_EQ(nccl_->aborts(), 1);
}

TEST_F(NcclTransportTest, SeveralCommunicatorsOneAfterTheOther) {
  for (int i = 0; i < 3; ++i) {
    connect({});
    if (alone()) continue;
    post(0);
    EXPECT_EQ(wait_for(2).size(), 2U);
    comm_.barrier();
    transport_.reset();
  }
}

TEST_F(NcclTransportTest, AFailureToConnectIsOneErrorOnEveryRankAtOnce) {
  for (NcclResult FakeNcclFaults::*const where :
       {&FakeNcclFaults::begin_init, &FakeNcclFaults::connecting}) {
    FakeNcclFaults faults;
    if (last()) faults.*where = NcclResult::system_error;
    Error const error = same_error([&] { connect(faults); });
    EXPECT_EQ(error.kind(), ErrorKind::resources);
    EXPECT_TRUE(
        has(error, "could not connect the ranks: result 2 of the stand-in (ncclSystemError)"))
        << error.sentence();
    EXPECT_TRUE(has(error, "run.transport = \"mpi\"")) << error.sentence();
  }
}

TEST_F(NcclTransportTest, AFailureToMakeAnIdIsOneErrorOnEveryRank) {
  FakeNcclFaults faults;
  if (comm_.rank() == 0) faults.unique_id = NcclResult::unhandled_cuda_error;
  Error const error = same_error([&] { connect(faults); });
  EXPECT_EQ(error.kind(), ErrorKind::resources);
  EXPECT_TRUE(has(error, "make an id")) << error.sentence();
  EXPECT_EQ(nccl_->aborts(), 0);
}

TEST_F(NcclTransportTest, ARankThatNeverConnectsIsAStallOnEveryRank) {
  FakeNcclFaults faults;
  faults.never_begins = last();
  Error const error = same_error([&] { connect(faults, 0.5); });
  EXPECT_EQ(error.kind(), ErrorKind::stall);
  EXPECT_TRUE(has(
      error, fmt::format("has not connected the {} within 0.5 s", counted(comm_.size(), "rank"))))
      << error.sentence();
  EXPECT_EQ(nccl_->aborts(), 1);
}

TEST_F(NcclTransportTest, WhatIsInTheWayIsSaidBeforeNcclIsAsked) {
  NcclRankFacts mine = facts();
  if (last()) mine.obstacle = "no NVIDIA driver is installed";
  Error const error = same_error([&] { connect_with(mine, {}, 60); });
  EXPECT_EQ(error.kind(), ErrorKind::resources);
  EXPECT_TRUE(has(error, fmt::format("rank {} on host here cannot use NCCL: no NVIDIA driver",
                                     comm_.size() - 1)))
      << error.sentence();
  EXPECT_EQ(nccl_->aborts(), 0);
}

TEST_F(NcclTransportTest, RanksThatShareAGpuAreRefused) {
  if (alone()) GTEST_SKIP() << "one rank shares with nobody";
  NcclRankFacts mine = facts();
  mine.device_id = "the only GPU";
  Error const error = same_error([&] { connect_with(mine, {}, 60); });
  EXPECT_EQ(error.kind(), ErrorKind::resources);
  EXPECT_TRUE(has(error, "ranks 0 and 1 on host here would share one GPU")) << error.sentence();
  mine.host_identity = std::to_string(comm_.rank());
  connect_with(mine, {}, 60);
  post(0);
  EXPECT_EQ(wait_for(2).size(), 2U);
}

TEST_F(NcclTransportTest, AnErrorAfterwardsNamesTheAwaitedRanks) {
  if (alone()) GTEST_SKIP() << "one rank has no messages";
  for (NcclResult const later : {NcclResult::remote_error, NcclResult::unhandled_cuda_error}) {
    FakeNcclFaults faults;
    faults.good_groups = 2;
    faults.moving_groups = 2;
    faults.later = later;
    connect(faults);
    post(0);
    post(2);
    EXPECT_EQ(wait_for(4).size(), 4U);
    std::vector<Landed> landed;
    std::optional<Error> const error = capture([&] {
      post(4);
      for (;;) transport_->poll(landed);
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(),
              later == NcclResult::remote_error ? ErrorKind::stall : ErrorKind::internal);
    EXPECT_TRUE(has(*error, awaited_text(transport_->awaited_peers()))) << error->sentence();
    EXPECT_EQ(transport_->awaited_peers().size(), comm_.size() == 2 ? 1U : 2U);
    EXPECT_TRUE(landed.empty());
    transport_->cancel();
    EXPECT_EQ(nccl_->aborts(), 1);
    transport_.reset();
    EXPECT_EQ(nccl_->aborts(), 1);
  }
}

TEST_F(NcclTransportTest, ARefusedMessageLeavesNoGroupOpen) {
  if (alone()) GTEST_SKIP() << "one rank has no messages";
  for (NcclResult FakeNcclFaults::*const where :
       {&FakeNcclFaults::send, &FakeNcclFaults::group_end}) {
    FakeNcclFaults faults;
    faults.*where = NcclResult::invalid_argument;
    connect(faults);
    std::optional<Error> const error = capture([&] { post(0); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::internal);
    EXPECT_TRUE(has(*error, "ncclInvalidArgument")) << error->sentence();
    EXPECT_EQ(nccl_->group_start(), NcclResult::success);
    nccl_->group_end();
    EXPECT_EQ(nccl_->misuses(), 0) << nccl_->last_error();
    transport_->cancel();
    transport_.reset();
  }
}

TEST_F(NcclTransportTest, CancelEndsGroupsThatMoveNothing) {
  if (alone()) GTEST_SKIP() << "one rank has no messages";
  FakeNcclFaults faults;
  faults.moving_groups = 1;
  connect(faults);
  for (std::size_t i = 0; i < 4; ++i) post(2 * i);
  EXPECT_EQ(wait_for(2).size(), 2U);
  Patience patience(0.2, {});
  std::vector<Landed> landed;
  while (patience.wait()) transport_->poll(landed);
  EXPECT_TRUE(landed.empty());
  EXPECT_EQ(transport_->bytes_landed(), 2 * message_bytes);
  auto const begin = Clock::now();
  transport_->cancel();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_TRUE(transport_->awaited_peers().empty());
}

TEST_F(NcclTransportTest, DestroyedWithMessagesOnTheirWayItAborts) {
  if (alone()) GTEST_SKIP() << "one rank has no messages";
  FakeNcclFaults faults;
  faults.moving_groups = 0;
  connect(faults);
  post(0);
  transport_.reset();
  EXPECT_EQ(nccl_->aborts(), 1);
  EXPECT_EQ(nccl_->destroyed(), 0);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
