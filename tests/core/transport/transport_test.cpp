// What every transport does alike. Every rank computes what all ranks send, from the same seed.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "core/transport/monitor/patience.hpp"
#include "tests/core/transport/transport_site.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte poison{0xdb};
constexpr double patience_seconds = 60;

/// Message `index` of a round from one rank to another.
struct Sent {
  int from = 0;
  int to = 0;
  std::uint64_t bytes = 0;
  std::uint64_t seed = 0;
};

/// Rounds of messages, in the order in which both sides post them.
struct Traffic {
  std::vector<std::vector<Sent>> rounds;
  std::size_t in_flight = 1;  ///< rounds that are posted before the oldest of them has landed
};

Bytes content(Sent const& message) {
  std::mt19937_64 random(message.seed);
  Bytes bytes(message.bytes);
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t const word = random();
    std::memcpy(&bytes[at], &word, std::min<std::size_t>(8, bytes.size() - at));
  }
  return bytes;
}

/// Byte i of message m in a rank's memory: with gaps, so that a byte out of place hits poison.
struct Placed {
  std::size_t round = 0;
  std::size_t number = 0;  ///< in the round's post
  bool received = false;
  Sent message;
  std::uint64_t at = 0;
};

class Rank {
 public:
  Rank(TransportSite& site, Traffic const& traffic) : site_(site), traffic_(traffic) {
    for (std::size_t r = 0; r < traffic.rounds.size(); ++r) place(r);
    image_.assign(end_, poison);
    for (Placed const& one : placed_) {
      Bytes const bytes = content(one.message);
      if (!one.received)
        std::copy(bytes.begin(), bytes.end(), image_.begin() + static_cast<std::ptrdiff_t>(one.at));
    }
    memory_ = site.allocate(end_);
    site.write(memory_, image_);
    for (Placed const& one : placed_) {
      Bytes const bytes = content(one.message);
      std::copy(bytes.begin(), bytes.end(), image_.begin() + static_cast<std::ptrdiff_t>(one.at));
    }
  }

  /// Posts all rounds and waits until everything has landed.
  void run() {
    Patience patience(patience_seconds, {});
    std::size_t posted = 0;
    for (std::size_t oldest = 0; oldest < traffic_.rounds.size();) {
      for (; posted < traffic_.rounds.size() && posted < oldest + traffic_.in_flight; ++posted)
        post(posted);
      if (look())
        patience.begin();
      else
        ASSERT_TRUE(patience.wait()) << awaited_text(site_.transport().awaited_peers());
      while (oldest < posted && left_of(oldest) == 0) ++oldest;
    }
    EXPECT_TRUE(site_.transport().awaited_peers().empty());
  }

  void check() {
    EXPECT_EQ(landed_.size(), placed_.size());
    std::uint64_t total = 0;
    for (Placed const& one : placed_) {
      auto const found = landed_.find(global(one.round, one.number));
      ASSERT_NE(found, landed_.end()) << "round " << one.round << ", message " << one.number;
      EXPECT_EQ(found->second.received, one.received);
      EXPECT_EQ(found->second.bytes, one.message.bytes);
      total += one.message.bytes;
    }
    EXPECT_EQ(bytes_landed_, total);
    EXPECT_TRUE(site_.read(memory_, end_) == image_) << "the memory does not hold what was sent";
  }

 private:
  static constexpr std::size_t most_per_round = 1'000'000;
  static std::size_t global(std::size_t round, std::size_t number) {
    return round * most_per_round + number;
  }

  void place(std::size_t round) {
    std::size_t number = 0;
    for (bool const received : {true, false})
      for (Sent const& message : traffic_.rounds[round]) {
        if ((received ? message.to : message.from) != comm_.rank()) continue;
        end_ += 1 + message.seed % 7;
        placed_.push_back({round, number++, received, message, end_});
        end_ += message.bytes;
      }
    end_ += 1;
    left_.push_back(number);
  }

  void post(std::size_t round) {
    std::vector<FlatMessage> receives;
    std::vector<FlatMessage> sends;
    for (Placed const& one : placed_)
      if (one.round == round)
        (one.received ? receives : sends)
            .push_back({one.received ? one.message.from : one.message.to, memory_ + one.at,
                        one.message.bytes});
    Transport& transport = site_.transport();
    if (transport.one_group() || round % 2 == 0)
      return transport.post(receives, sends, global(round, 0));
    transport.post(receives, {}, global(round, 0));
    for (std::size_t s = 0; s < sends.size(); ++s)
      transport.post({}, std::span(sends).subspan(s, 1), global(round, receives.size() + s));
  }

  bool look() {
    std::vector<Landed> landed = {{.number = 7, .received = true, .bytes = 7}};
    std::uint64_t const before = site_.transport().bytes_landed();
    site_.transport().poll(landed);
    EXPECT_EQ(landed[0].number, 7U) << "poll() must append";
    bytes_landed_ += site_.transport().bytes_landed() - before;
    for (std::size_t i = 1; i < landed.size(); ++i) {
      EXPECT_TRUE(landed_.emplace(landed[i].number, landed[i]).second)
          << "message " << landed[i].number << " landed twice";
      --left_[landed[i].number / most_per_round];
    }
    return landed.size() > 1;
  }

  std::size_t left_of(std::size_t round) const { return left_[round]; }

  Comm comm_ = Comm::world();
  TransportSite& site_;
  Traffic const& traffic_;
  std::vector<Placed> placed_;
  std::vector<std::size_t> left_;
  std::uint64_t end_ = 0;
  Bytes image_;
  std::byte* memory_ = nullptr;
  std::map<std::size_t, Landed> landed_;
  std::uint64_t bytes_landed_ = 0;
};

std::uint64_t random_size(std::mt19937_64& random) {
  switch (random() % 8) {
    case 0: return 0;
    case 1: return 1 + random() % 16;
    case 2: return 4096 * (1 + random() % 4);
    case 7: return random() % 8 == 0 ? 1 + random() % 2'000'000 : 1 + random() % 300'000;
    default: return 1 + random() % 20'000;
  }
}

Traffic random_traffic(std::uint64_t seed, int ranks) {
  std::mt19937_64 random(seed);
  Traffic traffic;
  std::size_t const rounds = 1 + random() % 5;
  traffic.in_flight = 1 + random() % rounds;
  std::uint64_t const density = 1 + random() % 10;
  for (std::size_t r = 0; r < rounds; ++r) {
    std::vector<Sent>& messages = traffic.rounds.emplace_back();
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to)
        for (std::uint64_t count = random() % 4; from != to && count > 0; --count)
          if (random() % 10 < density)
            messages.push_back({from, to, random_size(random), random()});
    // The order between two ranks is what counts, on both the same.
    std::shuffle(messages.begin(), messages.end(), random);
  }
  return traffic;
}

class TransportTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string why_not;
    site_ = make_site(GetParam(), why_not);
    if (site_ == nullptr) GTEST_SKIP() << why_not;
  }
  void TearDown() override {
    comm_.barrier();
    site_.reset();
  }
  void carry_out(Traffic const& traffic) {
    Rank rank(*site_, traffic);
    comm_.barrier();
    rank.run();
    rank.check();
  }
  int next() const { return (comm_.rank() + 1) % comm_.size(); }
  int previous() const { return (comm_.rank() + comm_.size() - 1) % comm_.size(); }

  Comm comm_ = Comm::world();
  std::unique_ptr<TransportSite> site_;
};

TEST_P(TransportTest, CarriesRandomMessagesWithSeveralRoundsInFlight) {
  for (std::uint64_t seed = 1; seed <= 12 && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " rank " << comm_.rank());
    carry_out(random_traffic(seed, comm_.size()));
  }
}

TEST_P(TransportTest, KeepsTheOrderOfManySmallMessages) {
  std::mt19937_64 random(5);
  Traffic traffic{.rounds = std::vector<std::vector<Sent>>(3), .in_flight = 3};
  for (auto& round : traffic.rounds)
    for (int i = 0; i < 4000; ++i) {
      int const from = static_cast<int>(random() % static_cast<std::uint64_t>(comm_.size()));
      int const to = static_cast<int>(random() % static_cast<std::uint64_t>(comm_.size()));
      if (from != to) round.push_back({from, to, 1 + random() % 16, random()});
    }
  carry_out(traffic);
}

TEST_P(TransportTest, CarriesOneLargeMessageAmongEmptyOnes) {
  if (comm_.size() == 1) GTEST_SKIP() << "one rank has no messages";
  Traffic traffic;
  traffic.rounds.push_back(
      {{0, 1, 0, 1}, {0, 1, (std::uint64_t{70} << 20) + 3, 2}, {1, 0, 0, 3}, {0, 1, 0, 4}});
  carry_out(traffic);
}

TEST_P(TransportTest, ARoundWithoutMessagesLandsAtOnce) {
  Transport& transport = site_->transport();
  transport.post({}, {}, 0);
  std::vector<Landed> landed;
  transport.poll(landed);
  EXPECT_TRUE(landed.empty());
  if (comm_.size() == 1) return;
  std::vector<FlatMessage> const receive = {{previous(), nullptr, 0}};
  std::vector<FlatMessage> const send = {{next(), nullptr, 0}};
  transport.post(receive, send, 40);
  transport.poll(landed);
  ASSERT_EQ(landed.size(), 2U);
  EXPECT_EQ(std::set<std::size_t>({landed[0].number, landed[1].number}),
            (std::set<std::size_t>{40, 41}));
  transport.poll(landed);
  EXPECT_EQ(landed.size(), 2U);
}

TEST_P(TransportTest, NamesThePeersThatItWaitsFor) {
  if (comm_.size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  Transport& transport = site_->transport();
  constexpr std::uint64_t bytes = 1'000'000;
  std::byte* const memory = site_->allocate(bytes);
  std::vector<FlatMessage> const one = {{1 - comm_.rank(), memory, bytes}};
  std::vector<Landed> landed;
  if (comm_.rank() == 0) {
    transport.post(one, {}, 3);
    transport.poll(landed);
    EXPECT_TRUE(landed.empty());
    EXPECT_EQ(transport.awaited_peers(), std::vector<int>{1});
    EXPECT_EQ(transport.bytes_landed(), 0U);
  }
  comm_.barrier();
  if (comm_.rank() == 1) transport.post({}, one, 9);
  Patience patience(patience_seconds, {});
  while (comm_.rank() <= 1 && landed.empty()) {
    transport.poll(landed);
    ASSERT_TRUE(patience.wait());
  }
  if (comm_.rank() > 1) return;
  EXPECT_TRUE(transport.awaited_peers().empty());
  EXPECT_EQ(landed[0].number, comm_.rank() == 0 ? 3U : 9U);
  EXPECT_EQ(landed[0].received, comm_.rank() == 0);
  EXPECT_EQ(transport.bytes_landed(), bytes);
}

TEST_P(TransportTest, CancelDoesNotWaitForMessagesThatNobodySends) {
  if (comm_.size() == 1) GTEST_SKIP() << "one rank has no messages";
  auto const begin = std::chrono::steady_clock::now();
  constexpr std::uint64_t bytes = 5000;
  std::vector<FlatMessage> const one = {{next(), site_->allocate(bytes), bytes}};
  for (std::size_t i = 0; i < 3; ++i) site_->transport().post(one, {}, i);
  std::vector<Landed> landed;
  site_->transport().poll(landed);
  site_->transport().cancel();
  EXPECT_TRUE(landed.empty());
  EXPECT_TRUE(site_->transport().awaited_peers().empty());
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 5);
}

INSTANTIATE_TEST_SUITE_P(Every, TransportTest, testing::ValuesIn(site_names()),
                         [](auto const& one) { return one.param; });

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
