#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/transport/transport.hpp"
#include "tests/gpu/random_words.hpp"
#include "tests/gpu/testbed.hpp"

namespace reshard::test {

struct SentMessage {
  int from = 0;
  int to = 0;
  std::uint64_t bytes = 0;
  std::uint64_t seed = 0;
};

/// Rounds of messages between all ranks, the same on every rank for the same seed; in each,
/// messages in the order in which they are posted.
inline std::vector<std::vector<SentMessage>> random_rounds(std::uint64_t seed, int ranks,
                                                           std::size_t rounds,
                                                           std::uint64_t most_bytes) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<SentMessage>> all(rounds);
  for (std::vector<SentMessage>& round : all)
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to)
        for (std::uint64_t count = random() % 4; from != to && count > 0; --count) {
          std::uint64_t const limit = std::uint64_t{1} << random() % 24;
          std::uint64_t const bytes =
              random() % 8 == 0 ? 0 : 1 + random() % (limit < most_bytes ? limit : most_bytes);
          round.push_back({from, to, bytes, random()});
        }
  return all;
}

/// One rank's memory for rounds of messages, at any alignment and with gaps.
class RankMemory {
 public:
  RankMemory(Testbed& testbed, std::vector<std::vector<SentMessage>> const& rounds, int rank)
      : testbed_(testbed) {
    for (std::vector<SentMessage> const& round : rounds) place(round, rank);
    memory_ = testbed.device().allocate(expected_.size());
    std::vector<std::byte> before = expected_;
    for (Received const& one : received_)
      for (std::uint64_t i = 0; i < one.bytes; ++i) before[one.at + i] = poison;
    testbed.upload(memory_->data(), before);
    for (std::vector<FlatMessage>* const list : {&receives_flat_, &sends_flat_})
      for (FlatMessage& message : *list)
        message.at = memory_->data() + reinterpret_cast<std::uintptr_t>(message.at);
  }

  std::span<FlatMessage const> receives(std::size_t round) const {
    return part(receives_flat_, receive_ends_, round);
  }
  std::span<FlatMessage const> sends(std::size_t round) const {
    return part(sends_flat_, send_ends_, round);
  }

  void check(std::string const& what) {
    std::vector<std::byte> const found = testbed_.download(memory_->data(), expected_.size());
    for (std::uint64_t i = 0; i < found.size(); ++i)
      expect(found[i] == expected_[i],
             "{}: byte {} of this rank's memory is not what was sent there", what, i);
  }

 private:
  static constexpr std::byte poison{0xdb};

  struct Received {
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
  };

  static std::span<FlatMessage const> part(std::vector<FlatMessage> const& all,
                                           std::vector<std::size_t> const& ends,
                                           std::size_t round) {
    std::size_t const begin = round == 0 ? 0 : ends[round - 1];
    return std::span(all).subspan(begin, ends[round] - begin);
  }

  void place(std::vector<SentMessage> const& round, int rank) {
    for (SentMessage const& message : round) {
      bool const arrives = message.to == rank;
      if (!arrives && message.from != rank) continue;
      expected_.resize(expected_.size() + 1 + message.seed % 7, poison);
      std::uint64_t const at = expected_.size();
      for (std::uint64_t i = 0; i < message.bytes; ++i)
        expected_.push_back(random_byte(message.seed, i));
      if (arrives) received_.push_back({at, message.bytes});
      // An offset until the memory is there.
      (arrives ? receives_flat_ : sends_flat_)
          .push_back({arrives ? message.from : message.to,
                      reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(at)),
                      message.bytes});
    }
    expected_.push_back(poison);
    receive_ends_.push_back(receives_flat_.size());
    send_ends_.push_back(sends_flat_.size());
  }

  Testbed& testbed_;
  std::vector<std::byte> expected_;
  std::vector<Received> received_;
  std::vector<FlatMessage> receives_flat_;
  std::vector<FlatMessage> sends_flat_;
  std::vector<std::size_t> receive_ends_;
  std::vector<std::size_t> send_ends_;
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace reshard::test
