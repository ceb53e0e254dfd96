// Headers that ranks share out: all of them on every rank, and one Error where several are damaged.

#include "core/formats/headers/shared_headers.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

class HeadersOfRanks : public testing::TestWithParam<HeaderReads> {
 protected:
  static constexpr std::size_t count = 70;  // more than one rank reads at a time

  HeadersOfRanks() {
    for (std::size_t f = 0; f < count; ++f) {
      source_.files.push_back(scratch_.path() / fmt::format("{:02}", f));
      write(f, "sound");
    }
  }

  void damage(std::size_t file) const { write(file, "damaged"); }

  /// What each rank gets, or throws.
  struct Seen {
    std::vector<std::vector<std::string>> headers;
    std::vector<std::optional<Error>> errors;
  };

  Seen read_by(int ranks) const {
    Seen seen;
    seen.headers.resize(static_cast<std::size_t>(ranks));
    seen.errors = test::RankThreads(ranks).run([&](HeaderExchange const& exchange) {
      Checkpoint source;
      source.files = source_.files;
      SharedHeaders const headers = shared_headers(
          source, exchange,
          [](File const& file) {
            std::string text(file.size_bytes(), ' ');
            file.read_at(0, std::as_writable_bytes(std::span(text)));
            if (text.starts_with("damaged"))
              fail(ErrorKind::source, "{}: {}. Copy it again.", file.path().string(), text);
            return HeaderBytes{text, {}};
          },
          GetParam());
      for (std::size_t f = 0; f < headers.size(); ++f)
        seen.headers[static_cast<std::size_t>(exchange.rank())].emplace_back(headers.own(f));
    });
    return seen;
  }

  /// That every rank of any number of them reports this file.
  void expect_reported(std::size_t file) const {
    for (int const ranks : {1, 2, 3, 4, 7, 80}) {
      for (auto const& error : read_by(ranks).errors) {
        ASSERT_TRUE(error) << ranks << " ranks";
        EXPECT_EQ(error->kind(), ErrorKind::source);
        EXPECT_NE(error->sentence().find(source_.files[file].string() + ": "), std::string::npos)
            << ranks << " ranks: " << error->sentence();
      }
    }
  }

  /// Without a sync, of which 70 take a while.
  void write(std::size_t file, std::string_view state) const {
    std::ofstream(source_.files[file]) << state << ' ' << file;
  }

  ScratchFolder scratch_{"shared_headers"};
  Checkpoint source_;
};

INSTANTIATE_TEST_SUITE_P(Reads, HeadersOfRanks,
                         testing::Values(HeaderReads::overlapped, HeaderReads::in_turn),
                         [](auto const& chosen) {
                           return chosen.param == HeaderReads::in_turn ? "in_turn" : "overlapped";
                         });

TEST_P(HeadersOfRanks, AreInTheOrderOfFilesOnEveryRank) {
  for (int const ranks : {1, 2, 3, 7}) {
    Seen const seen = read_by(ranks);
    for (auto const& error : seen.errors) ASSERT_FALSE(error) << error->sentence();
    for (auto const& headers : seen.headers) {
      ASSERT_EQ(headers.size(), count);
      for (std::size_t f = 0; f < count; ++f) EXPECT_EQ(headers[f], fmt::format("sound {}", f));
    }
  }
}

TEST_P(HeadersOfRanks, ReportTheFirstDamagedFileWhateverTheNumberOfRanks) {
  damage(66);
  expect_reported(66);
  damage(40);
  damage(21);  // of rank 1 of 2, 0 of 3, 1 of 4
  damage(23);
  expect_reported(21);
  damage(13);
  expect_reported(13);
}

TEST_P(HeadersOfRanks, ReportAMissingFileLikeADamagedOne) {
  damage(44);
  std::filesystem::remove(source_.files[9]);
  for (int const ranks : {1, 2, 4})
    for (auto const& error : read_by(ranks).errors) {
      ASSERT_TRUE(error);
      EXPECT_NE(error->sentence().find(source_.files[9].string()), std::string::npos)
          << error->sentence();
    }
}

/// Counts what a rank sends.
class CountedExchange final : public HeaderExchange {
 public:
  explicit CountedExchange(HeaderExchange const& ranks) : ranks_(ranks) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  void together(std::function<void()> const& work) const override { ranks_.together(work); }
  void together_seeing(std::function<void()> const& work) const override {
    ranks_.together_seeing(work);
  }
  std::vector<std::string> all_gather(std::string const& bytes) const override {
    sent_ += bytes.size();
    return ranks_.all_gather(bytes);
  }
  std::size_t sent() const { return sent_; }

 private:
  HeaderExchange const& ranks_;
  mutable std::size_t sent_ = 0;
};

/// File f has "own f" and one of three common texts.
HeaderBytes header_of(File const& file) {
  int const number = std::stoi(file.path().filename().string());
  return {"own " + std::to_string(number),
          std::make_shared<std::string const>(1000, static_cast<char>('a' + number % 3))};
}

TEST(CommonHeaders, TravelOnceFromEachRank) {
  ScratchFolder const folder("shared_headers");
  std::vector<std::filesystem::path> files;
  for (int f = 0; f < 40; ++f) {
    files.push_back(folder.path() / std::to_string(f));
    std::ofstream(files.back()) << std::string(static_cast<std::size_t>(f), 'x');
  }
  for (int const size : {1, 3, 7, 60}) {
    auto const errors = test::RankThreads(size).run([&](HeaderExchange const& ranks) {
      CountedExchange const exchange(ranks);
      Checkpoint source;
      source.files = files;
      SharedHeaders const headers = shared_headers(source, exchange, header_of);
      EXPECT_LT(exchange.sent(), 3010U + 40 * 100);
      ASSERT_EQ(headers.size(), 40U);
      EXPECT_EQ(headers.commons().size(), 3U);
      for (std::size_t f = 0; f < headers.size(); ++f) {
        EXPECT_EQ(headers.own(f), "own " + std::to_string(f));
        EXPECT_EQ(headers.commons().at(headers.common_of(f)),
                  std::string(1000, static_cast<char>('a' + f % 3)));
        EXPECT_EQ(source.stamps.taken[f].bytes, static_cast<std::int64_t>(f));
        EXPECT_EQ(source.stamps.rank[f], static_cast<int>(f) % size);
      }
    });
    for (auto const& error : errors) EXPECT_FALSE(error);
  }
}

}  // namespace
}  // namespace reshard
