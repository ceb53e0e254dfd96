// Damage to the files of a checkpoint of every format: an Error of kind source or a sentence about
// it, never another kind, a crash, or silence where bytes are gone.

#include <algorithm>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/formats/format.hpp"
#include "stages/plan/identity_plan.hpp"
#include "tests/support/sample_checkpoints.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using test::SampleCheckpoint;
using test::SampleMaker;

/// What became of a checkpoint: each may be refused, with its kind.
struct Outcome {
  std::optional<Error> read;  ///< by a job: opened, and planned where names can be kept
  std::optional<Error> describe;
  bool sound = true;  ///< of what describe() said

  bool noticed_by_description() const { return describe || !sound; }
};

class FormatDamage : public testing::TestWithParam<SampleMaker> {
 protected:
  FormatDamage() : sample_(GetParam().make(scratch_.path() / "sample")) {}

  Outcome outcome() const {
    Outcome result;
    result.read = capture([&] {
      Checkpoint const opened =
          open_checkpoint(sample_.path, FormatId::automatic, {}, LoneReader());
      if (opened.storage == Storage::shares) return;
      PlanRequest request;
      request.target.format = FormatId::dcp;
      request.read.map = "none";
      make_identity_plan(opened, request, PlanLimits{});
    });
    result.describe = capture(
        [&] { result.sound = choose_format(sample_.path).describe(sample_.path, {}).sound; });
    for (auto const& error : {result.read, result.describe})
      EXPECT_TRUE(!error || error->kind() == ErrorKind::source) << error->sentence();
    return result;
  }

  void expect_noticed(std::string const& what) const {
    Outcome const found = outcome();
    EXPECT_TRUE(found.read) << what << ": read";
    EXPECT_TRUE(found.noticed_by_description()) << what << ": described as sound";
  }

  /// Every file below the folder, but those with tensors.
  std::vector<fs::path> small_files() const {
    std::vector<fs::path> files;
    for (auto const& entry : fs::recursive_directory_iterator(sample_.path))
      if (entry.is_regular_file() &&
          std::ranges::find(sample_.files, entry.path()) == sample_.files.end())
        files.push_back(entry.path());
    std::ranges::sort(files);
    return files;
  }

  ScratchFolder scratch_{"format_damage_" + GetParam().name};
  SampleCheckpoint const sample_;
};

INSTANTIATE_TEST_SUITE_P(Formats, FormatDamage, testing::ValuesIn(test::sample_makers()),
                         [](auto const& chosen) { return chosen.param.name; });

/// A file with its bytes, put back at the end.
class Kept {
 public:
  explicit Kept(fs::path path) : path_(std::move(path)), bytes_(bytes_of(path_)) {}
  ~Kept() { put(bytes_); }
  Kept(Kept const&) = delete;
  Kept& operator=(Kept const&) = delete;

  std::vector<std::byte> const& bytes() const { return bytes_; }
  void put(std::span<std::byte const> bytes) const {
    File const file = File::create(path_);
    file.write_at(0, bytes);
  }

 private:
  fs::path path_;
  std::vector<std::byte> bytes_;
};

TEST_P(FormatDamage, NoneIsWholeAndSound) {
  Outcome const found = outcome();
  EXPECT_FALSE(found.read) << found.read->sentence();
  EXPECT_FALSE(found.noticed_by_description());
}

TEST_P(FormatDamage, AFileThatWasCutShortIsNoticed) {
  for (fs::path const& path : sample_.files) {
    Kept const kept(path);
    std::size_t const bytes = kept.bytes().size();
    for (std::size_t const left :
         {std::size_t{0}, std::size_t{1}, std::size_t{100}, bytes / 2, bytes - 100, bytes - 1}) {
      kept.put(std::span(kept.bytes()).first(left));
      expect_noticed(fmt::format("{} with {} of {} bytes", path.filename().string(), left, bytes));
    }
  }
}

TEST_P(FormatDamage, AFileThatIsMissingIsNoticed) {
  for (fs::path const& path : sample_.files) {
    Kept const kept(path);
    fs::remove(path);
    if (GetParam().name == "boxed_safetensors" && path == sample_.files.back()) {
      // Nothing says how many files there were: the checkpoint says so in a warning.
      Checkpoint const rest = open_checkpoint(sample_.path, FormatId::automatic, {}, LoneReader());
      EXPECT_NE(rest.warnings.front().find("a missing last file is not detected"),
                std::string::npos);
      continue;
    }
    expect_noticed(path.string());
  }
}

/// Where no checksum covers a header, another byte may mean something else that is as good.
TEST_P(FormatDamage, AByteOfAHeaderIsReadOrRefused) {
  constexpr std::size_t header = 2048;
  std::size_t const step =
      GetParam().format->id() == FormatId::hdf5 ? 97 : 11;  // a process for each reading
  for (fs::path const& path : sample_.files) {
    Kept const kept(path);
    for (std::size_t at = 0; at < std::min(header, kept.bytes().size()); at += step) {
      std::vector<std::byte> bytes = kept.bytes();
      bytes[at] ^= std::byte{0x41};
      kept.put(bytes);
      outcome();
    }
  }
}

TEST_P(FormatDamage, OfASmallFileIsReadOrRefused) {
  for (fs::path const& path : small_files()) {
    Kept const kept(path);
    for (std::size_t const left :
         {std::size_t{0}, std::size_t{1}, kept.bytes().size() / 2, kept.bytes().size() - 1}) {
      kept.put(std::span(kept.bytes()).first(left));
      outcome();
    }
    std::vector<std::byte> bytes = kept.bytes();
    for (std::size_t at = 0; at < bytes.size(); at += 13) {
      bytes[at] ^= std::byte{0x21};
      kept.put(bytes);
      outcome();
      bytes[at] = kept.bytes()[at];
    }
  }
}

TEST_P(FormatDamage, OfWhatIsWrittenLastIsNoticed) {
  if (sample_.written_last.empty()) GTEST_SKIP() << "it has no file that is written last";
  Kept const kept(sample_.written_last);
  for (std::size_t const left : {std::size_t{0}, std::size_t{1}, kept.bytes().size() / 2}) {
    kept.put(std::span(kept.bytes()).first(left));
    expect_noticed(fmt::format("{} of {} bytes", left, kept.bytes().size()));
  }
}

}  // namespace
}  // namespace reshard
