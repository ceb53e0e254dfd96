// Headers that ranks read for each other, on ranks that are played one after the other.

#include "core/formats/shared_headers.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

struct Sent {};

/// One of several ranks. Without what all have sent, it keeps its own bytes and ends there.
class PlayedRank final : public HeaderExchange {
 public:
  PlayedRank(int rank, std::size_t size, std::vector<std::string>& sent, bool knows_all)
      : rank_(rank), size_(size), sent_(sent), knows_all_(knows_all) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(size_); }
  void together(std::function<void()> const& work) const override { work(); }
  void together_seeing(std::function<void()> const& work) const override { work(); }
  std::vector<std::string> all_gather(std::string const& bytes) const override {
    if (knows_all_) return sent_;
    sent_.push_back(bytes);
    throw Sent();
  }

 private:
  int rank_;
  std::size_t size_;
  std::vector<std::string>& sent_;
  bool knows_all_;
};

/// File f has "own f" and one of three common texts.
HeaderBytes header_of(File const& file) {
  int const number = std::stoi(file.path().filename().string());
  return {"own " + std::to_string(number), std::string(1000, static_cast<char>('a' + number % 3))};
}

TEST(SharedHeaders, WhatIsCommonTravelsOnceFromEachRank) {
  ScratchFolder const folder("shared_headers");
  Checkpoint source;
  for (int f = 0; f < 40; ++f) {
    source.files.push_back(folder.path() / std::to_string(f));
    std::ofstream(source.files.back()) << std::string(static_cast<std::size_t>(f), 'x');
  }
  for (int const size : {1, 3, 7, 60}) {
    std::vector<std::string> sent;
    for (int rank = 0; rank < size; ++rank)
      EXPECT_THROW(
          shared_headers(source, PlayedRank(rank, static_cast<std::size_t>(size), sent, false),
                         header_of),
          Sent);
    for (std::string const& bytes : sent) EXPECT_LT(bytes.size(), 3010U + 40 * 100);
    for (int const rank : {0, size - 1}) {
      SharedHeaders const headers = shared_headers(
          source, PlayedRank(rank, static_cast<std::size_t>(size), sent, true), header_of);
      ASSERT_EQ(headers.size(), 40U);
      EXPECT_EQ(headers.commons().size(), 3U);
      for (std::size_t f = 0; f < headers.size(); ++f) {
        EXPECT_EQ(headers.own(f), "own " + std::to_string(f));
        EXPECT_EQ(headers.commons().at(headers.common_of(f)),
                  std::string(1000, static_cast<char>('a' + f % 3)));
        EXPECT_EQ(source.stamps[f].bytes, static_cast<std::int64_t>(f));
        EXPECT_EQ(source.stamped_by[f], static_cast<int>(f) % size);
      }
    }
  }
}

}  // namespace
}  // namespace reshard
