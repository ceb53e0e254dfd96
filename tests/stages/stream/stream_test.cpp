#include "stages/stream/stream.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/support/scratch_folder.hpp"
#include "tests/support/stream_into.hpp"
#include "tests/support/stream_paths.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

/// The folder that rank 0 made for all.
class SharedFolder {
 public:
  explicit SharedFolder(std::string_view name) {
    if (comm_.rank() == 0) mine_.emplace(name);
    path_ = comm_.broadcast(mine_ ? mine_->path().string() : std::string(), 0);
  }
  ~SharedFolder() { comm_.barrier(); }
  std::filesystem::path operator/(std::string const& name) const { return path_ / name; }

 private:
  Comm comm_ = Comm::world();
  std::optional<ScratchFolder> mine_;
  std::filesystem::path path_;
};

/// A random change of ownership, the same on every rank. In every round each rank reads `blocks`
/// matrices of rows x columns numbers from its source file; each goes, transposed and followed by
/// `pad_bytes` zeros, to a random block of the round in a random rank's target file.
struct Ownership {
  std::uint64_t ranks = 1;
  std::uint64_t rounds = 1;
  std::uint64_t blocks = 1;
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
  std::uint64_t pad_bytes = 0;
  std::vector<std::vector<std::uint64_t>>
      destination;  // [round][source rank * blocks + block]: target rank * blocks + block

  std::uint64_t block_bytes() const { return rows * columns * 4; }
  std::uint64_t slot_bytes() const { return block_bytes() + pad_bytes; }
  std::uint64_t source_bytes() const { return rounds * blocks * block_bytes(); }
  std::uint64_t target_bytes() const { return rounds * blocks * slot_bytes(); }
};

Ownership random_ownership(std::uint64_t seed, std::uint64_t ranks) {
  std::mt19937_64 random(seed);
  Ownership o;
  o.ranks = ranks;
  o.rounds = random() % 8;
  o.blocks = 1 + random() % 9;
  o.rows = 1 + random() % 60;
  o.columns = 1 + random() % 60;
  o.pad_bytes = random() % 2 == 0 ? 0 : random() % 40;
  for (std::uint64_t r = 0; r < o.rounds; ++r) {
    o.destination.emplace_back(ranks * o.blocks);
    std::iota(o.destination.back().begin(), o.destination.back().end(), std::uint64_t{0});
    if (random() % 5 != 0)
      std::shuffle(o.destination.back().begin(), o.destination.back().end(), random);
  }
  return o;
}

/// Number i of rank r's source file is r * source numbers + i, so a misplaced number says where it
/// came from.
Bytes source_of(Ownership const& o, std::uint64_t rank) {
  std::vector<std::uint32_t> numbers(o.source_bytes() / 4);
  std::iota(numbers.begin(), numbers.end(), static_cast<std::uint32_t>(rank * numbers.size()));
  Bytes bytes(o.source_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

/// What the target file of `rank` must hold, computed number by number.
Bytes target_of(Ownership const& o, std::uint64_t rank) {
  Bytes target(o.target_bytes());
  for (std::uint64_t r = 0; r < o.rounds; ++r)
    for (std::uint64_t b = 0; b < o.ranks * o.blocks; ++b) {
      std::uint64_t const to = o.destination[r][b];
      if (to / o.blocks != rank) continue;
      std::uint64_t const first = (b / o.blocks) * (o.source_bytes() / 4) +
                                  (r * o.blocks + b % o.blocks) * o.rows * o.columns;
      std::uint64_t const at = (r * o.blocks + to % o.blocks) * o.slot_bytes();
      for (std::uint64_t i = 0; i < o.rows; ++i)
        for (std::uint64_t j = 0; j < o.columns; ++j) {
          auto const number = static_cast<std::uint32_t>(first + i * o.columns + j);
          std::memcpy(&target[at + (j * o.rows + i) * 4], &number, 4);
        }
    }
  return target;
}

StridedCopy transposed(Ownership const& o, std::uint64_t from, std::uint64_t to) {
  auto const rows = static_cast<std::int64_t>(o.rows);
  auto const columns = static_cast<std::int64_t>(o.columns);
  return {from, to, 4, {{o.rows, columns * 4, 4}, {o.columns, 4, rows * 4}}};
}

/// Staging: blocks read | target slots | outgoing messages | incoming messages.
RoundWork round_of(Ownership const& o, std::uint64_t me, std::uint64_t round) {
  RoundWork work;
  std::uint64_t const slots_at = o.blocks * o.block_bytes();
  auto const slot = [&](std::uint64_t to) { return slots_at + to % o.blocks * o.slot_bytes(); };
  std::uint64_t end = slots_at + o.blocks * o.slot_bytes();
  work.fills.push_back({slots_at, o.blocks * o.slot_bytes()});
  for (std::uint64_t b = 0; b < o.blocks; ++b) {
    std::uint64_t const to = o.destination[round][me * o.blocks + b];
    work.reads.push_back({static_cast<std::uint32_t>(me), (round * o.blocks + b) * o.block_bytes(),
                          o.block_bytes(), b * o.block_bytes()});
    work.writes.push_back({static_cast<std::uint32_t>(me), (round * o.blocks + b) * o.slot_bytes(),
                           o.slot_bytes(), slot(b)});
    if (to / o.blocks == me) work.copies.push_back(transposed(o, b * o.block_bytes(), slot(to)));
  }
  for (std::uint64_t peer = 0; peer < o.ranks; ++peer) {
    Message send{static_cast<int>(peer), end, 0, {}};
    for (std::uint64_t b = 0; b < o.blocks && peer != me; ++b)
      if (o.destination[round][me * o.blocks + b] / o.blocks == peer) {
        send.copies.push_back({b * o.block_bytes(), send.at + send.bytes, o.block_bytes(), {}});
        send.bytes += o.block_bytes();
      }
    Message receive{static_cast<int>(peer), end + send.bytes, 0, {}};
    for (std::uint64_t b = 0; b < o.blocks && peer != me; ++b)
      if (std::uint64_t const to = o.destination[round][peer * o.blocks + b]; to / o.blocks == me) {
        receive.copies.push_back(transposed(o, receive.at + receive.bytes, slot(to)));
        receive.bytes += o.block_bytes();
      }
    end += send.bytes + receive.bytes;
    if (send.bytes > 0) work.sends.push_back(std::move(send));
    if (receive.bytes > 0) work.receives.push_back(std::move(receive));
  }
  work.staging_bytes = end;
  return work;
}

RoundSource rounds_of(Ownership const& o, std::uint64_t me) {
  return [&o, me, next = std::uint64_t{0}]() mutable -> std::optional<RoundWork> {
    if (next == o.rounds) return std::nullopt;
    return round_of(o, me, next++);
  };
}

std::vector<std::filesystem::path> paths_in(SharedFolder const& folder, std::string_view name,
                                            std::uint64_t count) {
  std::vector<std::filesystem::path> paths;
  for (std::uint64_t r = 0; r < count; ++r) paths.push_back(folder / fmt::format("{}{}", name, r));
  return paths;
}

std::uint64_t largest_round(Ownership const& o) {
  std::uint64_t largest = 4096;
  for (std::uint64_t rank = 0; rank < o.ranks; ++rank)
    for (std::uint64_t r = 0; r < o.rounds; ++r)
      largest = std::max(largest, (round_of(o, rank, r).staging_bytes + 4095) / 4096 * 4096);
  return largest;
}

void create(std::filesystem::path const& path, Bytes const& bytes) {
  File::create(path).write_at(0, bytes);
}

/// Every test on every path.
class Stream : public testing::TestWithParam<StreamPath> {
 protected:
  bool on_host() const {
    return GetParam() == StreamPath::host || GetParam() == StreamPath::host_with_threads;
  }
  StreamOptions on_path(StreamOptions const& options) { return parts_.on_path(options); }

 private:
  PathParts parts_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Paths, Stream,
                         testing::Values(StreamPath::host, StreamPath::host_with_threads,
                                         StreamPath::device_with_mpi, StreamPath::device_with_nccl),
                         [](auto const& given) { return name(given.param); });

TEST_P(Stream, ChangesOwnershipAsComputedDirectlyTwiceInARow) {
  Comm const comm = Comm::world();
  auto const me = static_cast<std::uint64_t>(comm.rank());
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " rank " << me);
    SharedFolder const folder("stream");
    Ownership const o = random_ownership(seed, static_cast<std::uint64_t>(comm.size()));
    create(folder / fmt::format("source{}", me), source_of(o, me));
    FileSet sources(paths_in(folder, "source", o.ranks), FileSet::Access::read);
    // From "one round at a time" to "all at once".
    std::uint64_t const programs = on_host() ? 0 : 1 << 20;
    std::uint64_t const memory = largest_round(o) * (1 + seed % 4) + programs;
    for (std::string_view const name : {"first", "second"}) {
      File::create(folder / fmt::format("{}{}", name, me)).resize(o.target_bytes());
      FileSet targets(paths_in(folder, name, o.ranks), FileSet::Access::write);
      std::uint64_t observed = 0;
      WriteObserver const observer = [&](std::uint32_t, std::uint64_t,
                                         std::span<std::byte const> bytes) {
        observed += bytes.size();
      };
      StreamStats const stats =
          stream_into(comm, on_path({.memory_bytes = memory, .exchanging = true}), sources, targets,
                      rounds_of(o, me), observer);
      EXPECT_EQ(stats.rounds, o.rounds);
      EXPECT_EQ(stats.bytes_read, o.source_bytes());
      EXPECT_EQ(stats.bytes_written, o.target_bytes());
      EXPECT_EQ(observed, o.target_bytes());
      EXPECT_LE(stats.staging_high_water_bytes, memory);
      EXPECT_EQ(comm.sum(static_cast<std::int64_t>(stats.bytes_sent)),
                comm.sum(static_cast<std::int64_t>(stats.bytes_received)));
      EXPECT_EQ(bytes_of(folder / fmt::format("{}{}", name, me)), target_of(o, me));
    }
  }
}

TEST_P(Stream, SendsMessagesLargerThanOnePart) {
  Comm const comm = Comm::world();
  if (comm.size() != 2) GTEST_SKIP() << "two ranks are enough";
  std::uint64_t const bytes = (std::uint64_t{150} << 20) + 3;
  int const peer = 1 - comm.rank();
  SharedFolder const folder("stream_large");
  std::string const mine = std::to_string(comm.rank());
  std::mt19937_64 random(static_cast<std::uint64_t>(comm.rank()));
  Bytes content(bytes);
  for (std::size_t i = 0; i < bytes; i += 997) content[i] = static_cast<std::byte>(random());
  create(folder / ("source" + mine), content);
  File::create(folder / ("target" + mine)).resize(bytes);
  FileSet sources({folder / ("source" + mine)}, FileSet::Access::read);
  FileSet targets({folder / ("target" + mine)}, FileSet::Access::write);
  RoundSource const one = [&, done = false]() mutable -> std::optional<RoundWork> {
    if (std::exchange(done, true)) return std::nullopt;
    RoundWork work{.staging_bytes = 2 * bytes,
                   .reads = {{0, 0, bytes, 0}},
                   .digests = {},
                   .fills = {},
                   .copies = {},
                   .sends = {},
                   .receives = {},
                   .writes = {},
                   .clones = {},
                   .unread = {},
                   .recorded = {}};
    work.sends.push_back({peer, 0, bytes, {}});
    work.receives.push_back({peer, bytes, bytes, {}});
    work.writes.push_back({0, 0, bytes, bytes});
    return work;
  };
  stream_into(comm, on_path({.memory_bytes = 2 * bytes + 4096, .exchanging = true}), sources,
              targets, one, {});
  comm.barrier();
  EXPECT_TRUE(bytes_of(folder / ("target" + mine)) ==
              bytes_of(folder / ("source" + std::to_string(peer))));
}

/// A job without messages: `rounds` rounds of `round_bytes`, copied from the source to the target
/// of this rank.
class PlainCopy {
 public:
  PlainCopy(std::uint64_t rounds, std::uint64_t round_bytes)
      : folder_("stream_copy"),
        rounds_(rounds),
        round_bytes_(round_bytes),
        name_(std::to_string(comm_.rank())) {
    Bytes content(rounds * round_bytes);
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i % 251);
    create(source(), content);
    File::create(target()).resize(content.size());
    sources_.emplace(std::vector{source()}, FileSet::Access::read);
    targets_.emplace(std::vector{target()}, FileSet::Access::write);
  }

  std::filesystem::path source() const { return folder_ / ("source" + name_); }
  std::filesystem::path target() const { return folder_ / ("target" + name_); }

  RoundWork round(std::uint64_t r) const {
    RoundWork work;
    work.staging_bytes = round_bytes_;
    work.reads.push_back({0, r * round_bytes_, round_bytes_, 0});
    work.writes.push_back({0, r * round_bytes_, round_bytes_, 0});
    return work;
  }
  RoundSource all_rounds() const {
    return [this, next = std::uint64_t{0}]() mutable -> std::optional<RoundWork> {
      if (next == rounds_) return std::nullopt;
      return round(next++);
    };
  }

  /// The kind of error that the stream ends with, or nothing.
  std::optional<ErrorKind> run(StreamOptions const& options, RoundSource const& source,
                               WriteObserver const& observer = {}) {
    auto const error = capture(
        [&] { stats_ = stream_into(comm_, options, *sources_, *targets_, source, observer); });
    if (!error) return std::nullopt;
    return error->kind();
  }
  StreamStats const& stats() const { return stats_; }

 private:
  Comm comm_ = Comm::world();
  SharedFolder folder_;
  std::uint64_t rounds_;
  std::uint64_t round_bytes_;
  std::string name_;
  std::optional<FileSet> sources_;
  std::optional<FileSet> targets_;
  StreamStats stats_;
};

TEST_P(Stream, KeepsToItsMemory) {
  PlainCopy copy(40, 100'000);
  EXPECT_EQ(copy.run(on_path({.memory_bytes = 409'600}), copy.all_rounds()), std::nullopt);
  EXPECT_LE(copy.stats().staging_high_water_bytes, 409'600U);
  EXPECT_EQ(copy.stats().bytes_written, 4'000'000U);
  EXPECT_EQ(bytes_of(copy.source()), bytes_of(copy.target()));
}

TEST_P(Stream, ARoundLargerThanTheMemoryIsABug) {
  PlainCopy copy(3, 100'000);
  EXPECT_EQ(copy.run(on_path({.memory_bytes = 65'536}), copy.all_rounds()),
            on_host() ? ErrorKind::internal : ErrorKind::resources);
}

TEST_P(Stream, ASourceCutUnderUsIsAnError) {
  PlainCopy copy(40, 100'000);
  std::filesystem::resize_file(copy.source(), 1'234'567);
  EXPECT_EQ(copy.run(on_path({.memory_bytes = 1 << 20}), copy.all_rounds()), ErrorKind::source);
}

TEST_P(Stream, AMissingSourceIsAnError) {
  PlainCopy copy(40, 100'000);
  std::filesystem::remove(copy.source());
  EXPECT_EQ(copy.run(on_path({.memory_bytes = 1 << 20}), copy.all_rounds()), ErrorKind::source);
}

TEST_P(Stream, AFullTargetIsAnErrorOfResources) {
  PlainCopy copy(40, 100'000);
  auto const before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit const low{1'500'000, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &low);
  auto const kind = copy.run(on_path({.memory_bytes = 1 << 20}), copy.all_rounds());
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(kind, ErrorKind::resources);
}

TEST_P(Stream, AFailingPlanEndsIt) {
  PlainCopy copy(40, 100'000);
  RoundSource const source = [&, next = std::uint64_t{0}]() mutable -> std::optional<RoundWork> {
    if (next == 7) fail(ErrorKind::self_check, "round 7 is wrong");
    return copy.round(next++);
  };
  EXPECT_EQ(copy.run(on_path({.memory_bytes = 1 << 20}), source), ErrorKind::self_check);
}

TEST_P(Stream, AFailingObserverEndsIt) {
  PlainCopy copy(40, 100'000);
  WriteObserver const observer = [](std::uint32_t, std::uint64_t offset_bytes,
                                    std::span<std::byte const>) {
    if (offset_bytes == 700'000) throw std::bad_alloc();
  };
  EXPECT_EQ(copy.run(on_path({.memory_bytes = 1 << 20}), copy.all_rounds(), observer),
            ErrorKind::resources);
}

TEST_P(Stream, StopsBetweenRounds) {
  PlainCopy copy(40, 100'000);
  std::atomic<bool> stop = false;
  RoundSource const source = [&, next = std::uint64_t{0}]() mutable -> std::optional<RoundWork> {
    if (next == 5) stop = true;
    EXPECT_LE(next, 5U) << "a round was asked for after the stop";
    return copy.round(next++);
  };
  EXPECT_EQ(copy.run(on_path({.memory_bytes = 1 << 20, .stop = &stop}), source),
            ErrorKind::interrupted);
}

/// Every fourth round is of what any rank may do.
TEST_P(Stream, TakesWorkFromOthersOnlyWithFewRoundsInHand) {
  PlainCopy copy(40, 100'000);
  std::uint64_t asked = 0;
  std::atomic<std::uint64_t> finished = 0;
  StreamOptions options = on_path({.memory_bytes = 4 << 20});
  options.finished = [&](FinishedRound const&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the reader is ahead
    ++finished;
  };
  options.claims_next = [&] { return asked % 4 == 0; };
  std::uint64_t most_in_hand = 0;
  RoundSource const source = [&, next = copy.all_rounds()]() mutable -> std::optional<RoundWork> {
    std::uint64_t const in_hand = asked - finished;
    if (asked % 4 == 0) {
      EXPECT_LE(in_hand, 2U) << asked;
    }
    most_in_hand = std::max(most_in_hand, in_hand);
    ++asked;
    return next();
  };
  EXPECT_EQ(copy.run(options, source), std::nullopt);
  EXPECT_GT(most_in_hand, 2U) << "nothing was waited for";
  EXPECT_EQ(bytes_of(copy.source()), bytes_of(copy.target()));
}

TEST_P(Stream, AFailureEndsTheWaitForFewRoundsInHand) {
  PlainCopy copy(40, 100'000);
  StreamOptions options = on_path({.memory_bytes = 4 << 20});
  options.claims_next = [asked = 0]() mutable { return ++asked == 7; };
  WriteObserver const observer = [](std::uint32_t, std::uint64_t offset_bytes,
                                    std::span<std::byte const>) {
    if (offset_bytes != 300'000) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the reader waits by now
    throw std::bad_alloc();
  };
  EXPECT_EQ(copy.run(options, copy.all_rounds(), observer), ErrorKind::resources);
}

TEST_P(Stream, WithoutRoundsDoesNothing) {
  PlainCopy copy(0, 100'000);
  EXPECT_EQ(copy.run(on_path({.memory_bytes = 4096}), copy.all_rounds()), std::nullopt);
  EXPECT_EQ(copy.stats().rounds, 0U);
}

TEST_P(Stream, TakesRoundsWithoutWork) {
  PlainCopy copy(1, 10);
  RoundSource const source = [next = 0]() mutable -> std::optional<RoundWork> {
    if (++next > 1000) return std::nullopt;
    return RoundWork{};
  };
  EXPECT_EQ(copy.run(on_path({.memory_bytes = 4096}), source), std::nullopt);
  EXPECT_EQ(copy.stats().rounds, 1000U);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
