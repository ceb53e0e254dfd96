// Containers that the ranks write through libhdf5 against the same containers written with pwrite:
// every byte must be equal.

#include "stages/write/hdf5_sink.hpp"

#include <fstream>
#include <iterator>
#include <random>

#include "core/plan/views/extent_batch.hpp"
#include "tests/core/containers/hdf5/container_files.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using hdf5::Sample;
using hdf5::Transfer;

/// The same on every rank when the seed is.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

 private:
  std::mt19937_64 random_;
};

Sample random_sample(Dice& dice) {
  constexpr std::array dtypes = {DType::u8,  DType::bf16, DType::f16,  DType::f32,     DType::f64,
                                 DType::c32, DType::c64,  DType::c128, DType::boolean, DType::i64};
  Sample sample;
  for (std::uint64_t i = 0, count = 1 + dice.below(12); i < count; ++i) {
    std::vector<Index> shape(dice.below(5));
    for (Index& extent : shape)
      extent =
          static_cast<Index>(dice.below(12) == 0 ? 0 : 1 + dice.below(dice.below(3) == 0 ? 40 : 6));
    sample.datasets.push_back(
        {fmt::format("t/{}", i), dtypes.at(dice.below(dtypes.size())), shape});
  }
  sample.datasets.push_back(
      {"large", DType::bf16, {static_cast<Index>(30 + dice.below(90)), 7, 257}});
  sample.datasets.push_back({"packed", DType::f4, {5, 6}});
  for (std::uint64_t i = 0, count = dice.below(3); i < count; ++i)
    sample.objects.push_back({fmt::format("o{}", i), dice.below(100'000)});
  return sample;
}

/// Bytes of a container that rounds write, and which dataset they are of.
struct Range {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t element_bytes = 1;
};

/// Neighbours become one range: extents may run across the borders of datasets.
struct Work {
  std::vector<Range> ranges;
  /// Some rank's rounds: extents of whole elements, in some order, with staging places that leave
  /// gaps.
  std::vector<std::vector<Extent>> rounds_of(int rank, int ranks, Dice dice) const {
    std::vector<Extent> mine;
    for (Range const& range : ranges)
      for (std::uint64_t at = range.begin; at < range.end;) {
        std::uint64_t const elements = (range.end - at) / range.element_bytes;
        std::uint64_t const bytes =
            range.element_bytes *
            (1 + dice.below(dice.below(3) == 0 ? elements : std::min<std::uint64_t>(elements, 50)));
        if (static_cast<int>(dice.below(static_cast<std::uint64_t>(ranks))) == rank)
          mine.push_back({range.file, at, bytes, 0});
        at += bytes;
      }
    std::vector<std::vector<Extent>> rounds;
    std::uint64_t const most =
        1 + dice.below(20) + (rank == 0 ? 100'000 : 0);  // rank 0 has one round, others many
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (i % most == 0) rounds.emplace_back();
      rounds.back().push_back(mine[i]);
    }
    for (auto& round : rounds) place(round, dice);
    return rounds;
  }

  static void place(std::vector<Extent>& round, Dice& dice) {
    std::uint64_t at = 0;
    for (Extent& extent : round) {
      if (dice.below(2) == 0) at += 64 - at % 64;
      extent.at = at;
      at += extent.bytes;
    }
    for (std::size_t i = round.size(); i > 1; --i) std::swap(round[i - 1], round[dice.below(i)]);
  }
};

std::byte byte_at(std::uint32_t file, std::uint64_t offset) {
  return static_cast<std::byte>((offset * 0x9e3779b97f4a7c15U + file * 77 + 1) >> 56U);
}

std::string content(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A container with its first frame; its ranges of bytes.
std::vector<Range> create(Sample const& sample, fs::path const& path, std::uint32_t number) {
  hdf5::ContainerPlan const plan = sample.plan();
  File const file = File::create(path);
  file.resize(plan.size_bytes);
  for (FileSegment const& piece : plan.frame)
    file.write_at(piece.offset_bytes, std::as_bytes(std::span(piece.bytes)));
  std::vector<Range> ranges;
  std::size_t i = 0;
  for (auto const& [begin, end] : sample.ranges(plan)) {
    std::uint64_t const width =
        i < sample.datasets.size()
            ? static_cast<std::uint64_t>(std::max(8, bits(sample.datasets[i].dtype))) / 8
            : 1;
    if (end > begin) ranges.push_back({number, begin, end, width});
    ++i;
  }
  return ranges;
}

class Hdf5SinkOnRanks : public ::testing::TestWithParam<Transfer> {
 protected:
  Comm world_ = Comm::world();
  fs::path const folder_ =
      fs::temp_directory_path() / world_.broadcast(fmt::format("hdf5_sink_{}", ::getpid()), 0);

  void SetUp() override {
    if (world_.rank() == 0) fs::create_directories(folder_);
    world_.barrier();
  }
  void TearDown() override {
    world_.barrier();
    if (world_.rank() == 0) fs::remove_all(folder_);
  }

  /// The files as they must be, written without libhdf5 by one rank.
  void write_expected(std::vector<fs::path> const& files, Work const& work) const {
    for (std::size_t f = 0; f < files.size(); ++f) fs::copy_file(files[f], expected(files[f]));
    for (Range const& range : work.ranges) {
      std::vector<std::byte> bytes;
      for (std::uint64_t at = range.begin; at < range.end; ++at)
        bytes.push_back(byte_at(range.file, at));
      File::open_for_writing(expected(files[range.file])).write_at(range.begin, bytes);
    }
  }
  static fs::path expected(fs::path const& file) { return file.string() + ".expected"; }

  void write_rounds(ExtentSink& sink, std::vector<std::vector<Extent>> const& rounds) const {
    for (auto const& round : rounds) {
      std::uint64_t bytes = 64;
      for (Extent const& extent : round) bytes = std::max(bytes, extent.at + extent.bytes);
      std::vector<std::byte> staging(bytes);
      for (Extent const& extent : round)
        for (std::uint64_t i = 0; i < extent.bytes; ++i)
          staging[extent.at + i] = byte_at(extent.file, extent.offset_bytes + i);
      sink.write(round, staging.data());
    }
    sink.finish();
  }

  /// Whether every byte is as expected, and all of this rank's bytes were seen by the observer.
  void try_one(std::uint64_t seed) {
    Dice dice(seed);
    std::vector<fs::path> files;
    Work work;
    for (std::uint32_t f = 0, count = 1 + static_cast<std::uint32_t>(dice.below(3)); f < count;
         ++f) {
      files.push_back(folder_ / fmt::format("{}_{}.h5", seed, f));
      Sample const sample = random_sample(dice);
      if (world_.rank() == 0) create(sample, files.back(), f);
      std::vector<Range> const ranges =
          create(sample, folder_ / fmt::format("of_rank_{}", world_.rank()), f);
      work.ranges.insert(work.ranges.end(), ranges.begin(), ranges.end());
    }
    if (world_.rank() == 0) write_expected(files, work);
    world_.barrier();
    auto const rounds = work.rounds_of(world_.rank(), world_.size(), Dice(seed + 1));
    std::uint64_t planned = 0;
    for (auto const& round : rounds)
      for (Extent const& extent : round) planned += extent.bytes;
    std::uint64_t seen = 0;
    WriteObserver const observer = [&](std::uint32_t file, std::uint64_t offset,
                                       std::span<std::byte const> bytes) {
      for (std::size_t i = 0; i < bytes.size(); ++i)
        seen += bytes[i] == byte_at(file, offset + i) ? 1U : 0U;
    };
    Hdf5Sink sink(world_, files, GetParam(), observer, 60);
    write_rounds(sink, rounds);
    sink.close();
    EXPECT_EQ(seen, planned);
    EXPECT_EQ(sink.stats().bytes, planned);
    world_.barrier();
    if (world_.rank() != 0) return;
    for (fs::path const& file : files)
      EXPECT_TRUE(content(file) == content(expected(file))) << file << ", seed " << seed;
  }
};

TEST_P(Hdf5SinkOnRanks, WritesWhatPwriteWrites) {
  for (std::uint64_t seed = 1000; seed < 1004; ++seed) try_one(seed);
}

TEST_P(Hdf5SinkOnRanks, TakesPartWithoutRounds) {
  fs::path const file = folder_ / "one.h5";
  Sample const sample = hdf5::small_sample();
  Work work;
  if (world_.rank() == 0) work.ranges = create(sample, file, 0);
  if (world_.rank() == 0) write_expected({file}, work);
  world_.barrier();
  WriteObserver const none;
  Hdf5Sink sink(world_, std::vector<fs::path>{file}, GetParam(), none, 60);
  write_rounds(sink, world_.rank() == 0 ? work.rounds_of(0, 1, Dice(3))
                                        : std::vector<std::vector<Extent>>{});
  sink.close();
  world_.barrier();
  if (world_.rank() == 0) {
    EXPECT_TRUE(content(file) == content(expected(file)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Hdf5SinkOnRanks,
                         ::testing::Values(Transfer::independent, Transfer::collective),
                         [](auto const& one) {
                           return one.param == Transfer::collective ? "collective" : "independent";
                         });

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
