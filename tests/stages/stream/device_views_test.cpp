// Values that a device computes while rounds stream through it are those that the host path
// computes.

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "stages/stream/stream.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/stream_into.hpp"
#include "tests/support/view_files.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;
using quant::CodeFormat;
using quant::SecondScale;

/// A source file with stored tensors, views over it, and rounds that write the views' bytes one
/// after the other.
class ViewJob {
 public:
  explicit ViewJob(std::uint64_t seed) : folder_("device_views"), random_(seed) {}

  void add_quantised() {
    add(random_weight({.codes = CodeFormat::e4m3, .block_rows = 16, .block_columns = 24},
                      {2, 33, 50}, {.scale = DType::f32}, random_));
    add(random_weight({.codes = CodeFormat::e2m1,
                       .block_rows = 1,
                       .block_columns = 16,
                       .second = SecondScale::divided_by},
                      {3, 7, 34}, {.scale = DType::f8_e4m3, .seconds = 3}, random_));
    add(random_weight({.codes = CodeFormat::integer, .block_rows = 1, .block_columns = 32},
                      {2, 21, 70}, {.scale = DType::bf16, .zero_points = DType::i32}, random_));
    add(random_weight({.codes = CodeFormat::i8, .block_rows = 0, .block_columns = 0}, {1, 40, 9},
                      {.scale = DType::f32}, random_));
  }

  /// F32 numbers that BF16 has, as BF16; `wrong` of them becomes one that it does not have.
  void add_cast(std::size_t count, std::optional<std::size_t> wrong = std::nullopt) {
    std::vector<float> numbers(count);
    for (float& number : numbers)
      number = static_cast<float>(static_cast<int>(random_() % 256) - 128);
    if (wrong) numbers[*wrong] = 0.1F;
    Bytes stored(count * 4);
    std::memcpy(stored.data(), numbers.data(), stored.size());
    StoredPlace const place = contents_.add(DType::f32, {static_cast<Index>(count)}, stored);
    views_.push_back({.kind = ViewKind::cast,
                      .name = "norm",
                      .stored = place,
                      .dtype = DType::bf16,
                      .shape = place.shape});
  }

  /// Reads every view in random pieces, some of which are written as they are and some turned
  /// around element by element.
  std::vector<RoundWork> random_rounds() {
    std::vector<RoundWork> rounds;
    target_bytes_ = 0;
    for (std::uint32_t v = 0; v < views_.size(); ++v) {
      auto const elements = static_cast<std::uint64_t>(elements_of(views_[v]));
      for (std::uint64_t first = 0; first < elements;) {
        std::uint64_t const count = std::min(elements - first, 1 + random_() % 700);
        if (rounds.empty() || random_() % 3 == 0) rounds.emplace_back();
        add_piece(rounds.back(), {1 + v, first * 2, count * 2, 0}, random_() % 2 == 0);
        first += count;
      }
    }
    return rounds;
  }

  /// The digest of each view, as the last run took it.
  std::vector<std::uint64_t> const& digests() const { return digests_; }
  StreamStats const& stats() const { return stats_; }
  std::size_t pieces() const { return pieces_; }

  /// The target's bytes, or the sentence of the error that ended the job.
  std::variant<Bytes, std::string> run(std::vector<RoundWork> const& rounds, Device* device,
                                       std::string const& name) {
    Comm const comm = Comm::world();
    FileSet sources({folder_.file("source", contents_.bytes)}, FileSet::Access::read);
    std::filesystem::path const target = folder_.path() / name;
    File::create(target).resize(target_bytes_);
    FileSet targets({target}, FileSet::Access::write);
    digests_.assign(views_.size(), 0);
    StreamOptions options{.memory_bytes = 1 << 20, .views = views_, .digests = digests_};
    if (device != nullptr) options.on_device = DeviceSetup{device, options.memory_bytes, {}};
    RoundSource const source = [&rounds, next = std::size_t{0}]() mutable {
      return next == rounds.size() ? std::nullopt : std::optional(rounds[next++]);
    };
    auto const error =
        capture([&] { stats_ = stream_into(comm, options, sources, targets, source, {}); });
    if (error) return error->sentence();
    return bytes_of(target);
  }

 private:
  void add(SlowWeight const& weight) { views_.push_back(view_of(weight, contents_)); }

  void add_piece(RoundWork& round, Extent read, bool turned_around) {
    read.at = (round.staging_bytes + 63) / 64 * 64;
    round.staging_bytes = read.at + read.bytes;
    round.reads.push_back(read);
    ++pieces_;
    std::uint32_t const view = read.file - 1;
    round.digests.push_back(
        {.digest = DigestId{view},
         .from = read.at,
         .at = read.offset_bytes,
         .run_bytes = read.bytes,
         .dims = {},
         .tensor_bytes = static_cast<std::uint64_t>(elements_of(views_[view])) * 2,
         .file = read.file,
         .offset_bytes = read.offset_bytes});
    std::uint64_t from = read.at;
    if (turned_around) {
      from = (round.staging_bytes + 63) / 64 * 64;
      round.staging_bytes = from + read.bytes;
      round.copies.push_back({read.at + read.bytes - 2, from, 2, {{read.bytes / 2, -2, 2}}});
    }
    round.writes.push_back({0, target_bytes_, read.bytes, from});
    target_bytes_ += read.bytes;
  }

  ScratchFolder folder_;
  std::mt19937_64 random_;
  Contents contents_;
  std::vector<SourceView> views_;
  std::vector<std::uint64_t> digests_;
  StreamStats stats_;
  std::size_t pieces_ = 0;
  std::uint64_t target_bytes_ = 0;
};

TEST(DeviceViews, AreWhatTheHostComputes) {
  auto const device = make_emulated_device();
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ViewJob job(seed);
    job.add_quantised();
    job.add_cast(5000);
    auto const rounds = job.random_rounds();
    auto const wanted = job.run(rounds, nullptr, "host");
    ASSERT_TRUE(std::holds_alternative<Bytes>(wanted)) << std::get<std::string>(wanted);
    std::vector<std::uint64_t> const digests = job.digests();
    EXPECT_EQ(std::ranges::count(digests, 0U), 0);
    auto const found = job.run(rounds, device.get(), "device");
    ASSERT_TRUE(std::holds_alternative<Bytes>(found)) << std::get<std::string>(found);
    EXPECT_TRUE(found == wanted);
    EXPECT_EQ(job.digests(), digests);
    // What is written, and a few words of each round: its verdict and a sum for each digest.
    std::uint64_t const written = std::get<Bytes>(wanted).size();
    EXPECT_GE(job.stats().bytes_downloaded, written);
    EXPECT_LE(job.stats().bytes_downloaded, written + 64 * rounds.size() + 8 * job.pieces());
  }
}

TEST(DeviceViews, AnInexactCastIsTheSameErrorOnBothPaths) {
  auto const device = make_emulated_device();
  for (std::size_t const wrong : {0U, 777U, 4999U}) {
    ViewJob job(wrong);
    job.add_cast(100);
    job.add_cast(5000, wrong);
    auto const rounds = job.random_rounds();
    auto const wanted = job.run(rounds, nullptr, "host");
    ASSERT_TRUE(std::holds_alternative<std::string>(wanted));
    EXPECT_NE(std::get<std::string>(wanted).find(fmt::format("element {} is 0.1", wrong)),
              std::string::npos);
    EXPECT_TRUE(job.run(rounds, device.get(), "device") == wanted);
  }
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
