// A target from its claim to its publication, on one rank and several, cut off in between and gone
// on with. What streams is left out: each cell is written as it comes.

#include <algorithm>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/plan/cells/hand_out.hpp"
#include "core/plan/cells/schedule.hpp"
#include "pipeline/publication/claim/interrupted_run.hpp"
#include "pipeline/publication/complete_target.hpp"
#include "pipeline/publication/target_folders.hpp"
#include "pipeline/publication/verify_target.hpp"
#include "pipeline/run/agreement.hpp"
#include "pipeline/verify/target_gate.hpp"
#include "stages/write/extent_writer.hpp"
#include "tests/pipeline/small_job.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/other_user.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// A job whose source has no bytes: zeros are written.
class WholeTarget : public testing::Test {
 protected:
  void SetUp() override {
    if (comm_.rank() == 0) {
      own_.emplace("whole_target");
      make_folders(own_->path() / "source");
    }
    folder_ = comm_.broadcast(own_ ? own_->path().string() : "", 0);
    spec_ = test::small_spec(folder_);
    spec_.run.verify = VerifyChoice::off;
    spec_.target.replace = false;
  }
  void TearDown() override { comm_.barrier(); }

  TargetTask task() const {
    return {spec_, job_.source.value, job_.plan, identity_, previous_, comm_};
  }
  ClaimedTarget claim(bool fresh = false) const {
    return claim_target(task(), {.space = {1, std::uint64_t{1} << 40}, .fresh = fresh});
  }

  /// So many rounds of the parts that this rank gets, or all of them.
  void write(
      TargetRounds& rounds, std::size_t most,
      std::function<void()> const& before_noted = [] {}) const {
    WriteObserver const observer = [&](std::uint32_t file, std::uint64_t offset,
                                       std::span<std::byte const> bytes) {
      rounds.observe(file, offset, bytes);
    };
    ExtentWriter writer(rounds.files(), observer, rounds.edges());
    HandOut hand_out(job_.plan.plan, rounds.parts(), comm_.rank(), rounds.claims());
    std::uint64_t number = 0;
    for (auto part = hand_out.next(); part && number < most; part = hand_out.next()) {
      auto next = direct_rounds(job_.plan.plan, rounds.parts().cells(*part), 2048);
      for (auto round = next(); round && number < most; round = next(), ++number) {
        std::vector<std::byte> staging(round->staging_bytes);
        writer.take(*round, staging.data());
        before_noted();
        std::vector<DigestShare> digests;  // of zeros
        for (DigestPart const& one : round->digests)
          digests.push_back({one.digest, 0, bytes_of(one)});
        rounds.note({number, round->cells, digests, {}, round->writes});
      }
    }
    cells_of_others_ = hand_out.cells_of_others();
  }

  /// Makes a target, up to this end, or cuts it off after two rounds of each rank.
  enum class End { cut_off, sealed, published };
  std::optional<EarlierWork> make(End end) {
    ClaimedTarget claimed = claim();
    BegunTarget begun = begin_target(task(), claimed, "posix");
    RoundNumbers numbers;
    if (begun.earlier) numbers.kept = drop_cells(job_.plan.plan, begun.earlier->done.cells);
    if (handing_out_)
      numbers.parts.emplace(job_.plan.plan, comm_.size(), PartLimits{.least_weight = 2048});
    TargetRounds rounds(task(), claimed.target, begun, numbers);
    if (end == End::cut_off) {
      write(rounds, 2);
      rounds.end();
      return begun.earlier;
    }
    if (one_by_one_ && comm_.rank() > 0) comm_.barrier();
    write(rounds, SIZE_MAX);
    if (one_by_one_ && comm_.rank() == 0) comm_.barrier();
    comm_.barrier();
    if (rounds.claims() != nullptr) rounds.claims()->remove();
    CompletedTarget completed = complete_target(task(), claimed.target, begun, rounds, {});
    EXPECT_EQ(verify_target(task(), claimed, begun, rounds, completed, {}).total, "");
    seal_target(task(), claimed, completed);
    if (end == End::published) {
      EXPECT_EQ(claimed.target.publish(comm_), "");
    }
    return begun.earlier;
  }

  void plan_again() { job_ = test::small_job(test::small_limits(false)); }
  bool is_there(std::string const& name) const { return fs::exists(folder_ / name); }
  /// What runs left beside the target.
  std::size_t leftovers() const {
    comm_.barrier();
    Leftovers const left = leftovers_of(spec_.target.path);
    comm_.barrier();
    return left.all().size();
  }

  Comm comm_ = Comm::world();
  std::optional<ScratchFolder> own_;
  fs::path folder_;
  JobSpec spec_;
  test::SmallJob job_ = test::small_job(test::small_limits(false));
  JobIdentity identity_{"program", "job", "source", "plan", "text"};
  PreviousTarget previous_;
  bool handing_out_ = false;
  bool one_by_one_ = false;  ///< rank 0 writes first
  mutable std::uint64_t cells_of_others_ = 0;
};

TEST_F(WholeTarget, GetsItsNameWhenItIsComplete) {
  EXPECT_FALSE(make(End::published));
  EXPECT_TRUE(is_there("target/.metadata"));
  for (TargetFile const& file : job_.plan.files)
    EXPECT_EQ(fs::file_size(spec_.target.path / file.path), file.size_bytes);
  EXPECT_EQ(leftovers(), 0U);
}

TEST_F(WholeTarget, ARankThatIsDoneDoesThePartsOfOthers) {
  handing_out_ = one_by_one_ = true;
  EXPECT_FALSE(make(End::published));  // complete_target() counts each cell once
  EXPECT_EQ(cells_of_others_ > 0, comm_.size() > 1 && comm_.rank() == 0);
  EXPECT_EQ(leftovers(), 0U);
}

/// The journal alone says what is done.
TEST_F(WholeTarget, ClaimsOfARunThatWasCutOffMeanNothingToTheNext) {
  handing_out_ = true;
  EXPECT_FALSE(make(End::cut_off));
  comm_.barrier();
  auto const claims = [&] {
    std::size_t count = 0;
    for (auto const& entry : fs::recursive_directory_iterator(folder_))
      count += entry.path().filename().string().find(".claim-") != std::string::npos ? 1U : 0U;
    return count;
  };
  EXPECT_EQ(claims() > 0, comm_.size() > 1);
  comm_.barrier();
  plan_again();
  EXPECT_TRUE(make(End::published));
  EXPECT_EQ(leftovers(), 0U);
}

TEST_F(WholeTarget, GoesOnWhereARunWasCutOff) {
  EXPECT_FALSE(make(End::cut_off));
  EXPECT_FALSE(is_there("target"));
  EXPECT_EQ(leftovers(), 2U);
  plan_again();
  std::size_t const cells = job_.plan.plan.cells.size();
  auto const earlier = make(End::published);
  ASSERT_TRUE(earlier);
  EXPECT_EQ(earlier->runs, 1U);
  EXPECT_GT(earlier->done.bytes, 0U);
  EXPECT_LT(job_.plan.plan.cells.size(), cells);
  EXPECT_TRUE(is_there("target/.metadata"));
  EXPECT_EQ(leftovers(), 0U);
}

/// Names, sizes and times of all that is beside the target and in it.
std::vector<std::string> state_of(fs::path const& folder) {
  std::vector<std::string> state;
  for (auto const& entry : fs::recursive_directory_iterator(folder))
    state.push_back(fmt::format("{} {} {}", entry.path().string(),
                                entry.is_regular_file() ? entry.file_size() : 0,
                                entry.last_write_time().time_since_epoch().count()));
  std::ranges::sort(state);
  return state;
}

TEST_F(WholeTarget, IsFoundByAPlanThatChangesNothing) {
  auto const found = [&](bool fresh = false, Journaled journaled = Journaled::yes) {
    comm_.barrier();
    auto const before = state_of(folder_);
    comm_.barrier();
    InterruptedRun run = find_interrupted_run(task(), fresh, journaled);
    comm_.barrier();
    EXPECT_EQ(state_of(folder_), before);
    comm_.barrier();
    return run;
  };
  EXPECT_EQ(found().staging, "");
  make(End::cut_off);
  plan_again();
  InterruptedRun const part = found();
  InterruptedRun const fresh = found(true);
  InterruptedRun const by_library = found(false, Journaled::no);
  identity_.source = "another";
  InterruptedRun const other = found();
  identity_.source = "source";
  auto const earlier = make(End::sealed);
  plan_again();
  InterruptedRun const sealed = found();
  if (comm_.rank() != 0) return;
  EXPECT_EQ(part.earlier, EarlierTarget::part);
  EXPECT_EQ(part.runs, 1U);
  EXPECT_EQ(part.bytes, earlier->done.bytes);
  EXPECT_LT(part.bytes, part.all_bytes);
  EXPECT_EQ(part.sign_of_life, "") << "the run has noted that it has ended";
  EXPECT_NE(interrupted_text(part).find("by 1 earlier run: `run` resumes this"), std::string::npos)
      << interrupted_text(part);
  EXPECT_EQ(fresh.earlier, EarlierTarget::nothing);
  EXPECT_EQ(fresh.why_not, "--fresh was given");
  EXPECT_EQ(by_library.why_not, "with this target.io a run always starts afresh");
  EXPECT_EQ(other.earlier, EarlierTarget::nothing);
  EXPECT_EQ(other.staging, part.staging);
  EXPECT_NE(interrupted_text(other).find("the source has changed. `run` removes it"),
            std::string::npos)
      << interrupted_text(other);
  EXPECT_EQ(sealed.earlier, EarlierTarget::whole);
  EXPECT_EQ(sealed.bytes, sealed.all_bytes);
  EXPECT_NE(interrupted_text(sealed).find("`run` renames it"), std::string::npos);
  EXPECT_EQ(interrupted_json(part).find("next_run")->dump(), "\"resumes\"");
}

TEST_F(WholeTarget, ThatIsSealedOnlyNeedsItsName) {
  make(End::sealed);
  EXPECT_FALSE(is_there("target"));
  plan_again();
  ClaimedTarget claimed = claim();
  EXPECT_EQ(claimed.earlier, EarlierTarget::whole);
  claimed.target.keep(false);  // what is sealed stays in any case
  EXPECT_EQ(claimed.target.publish(comm_), "");
  EXPECT_TRUE(is_there("target/.metadata"));
}

TEST_F(WholeTarget, FreshBeginsAgainAndSaysSo) {
  make(End::cut_off);
  plan_again();
  ClaimedTarget const claimed = claim(true);
  EXPECT_EQ(claimed.earlier, EarlierTarget::nothing);
  ASSERT_EQ(claimed.warnings.size(), comm_.rank() == 0 ? 1U : 0U);
  if (comm_.rank() == 0) {
    EXPECT_NE(claimed.warnings.front().find("--fresh was given"), std::string::npos);
  }
}

TEST_F(WholeTarget, OfAnotherJobIsNotGoneOnWith) {
  make(End::cut_off);
  plan_again();
  identity_.source = "another";
  ClaimedTarget const claimed = claim();
  EXPECT_EQ(claimed.earlier, EarlierTarget::nothing);
  if (comm_.rank() == 0) {
    EXPECT_NE(claimed.warnings.front().find("the source has changed"), std::string::npos)
        << claimed.warnings.front();
  }
}

TEST_F(WholeTarget, ThatIsNotToBeKeptIsRemoved) {
  {
    ClaimedTarget claimed = claim();
    begin_target(task(), claimed, "posix");
    EXPECT_EQ(leftovers(), 2U);
    claimed.target.keep(false);
    comm_.barrier();
  }
  EXPECT_EQ(leftovers(), 0U);
}

TEST_F(WholeTarget, ARoundThatIsMissingIsNoticed) {
  ClaimedTarget claimed = claim();
  BegunTarget begun = begin_target(task(), claimed, "posix");
  TargetRounds rounds(task(), claimed.target, begun, {});
  write(rounds, 1);
  auto const error = capture([&] { complete_target(task(), claimed.target, begun, rounds, {}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::self_check);
  claimed.target.keep(false);
}

/// One file is changed behind the back of the rank that writes it.
TEST_F(WholeTarget, AFileThatIsReadBackEarlyIsCompared) {
  spec_.run.verify = VerifyChoice::written;
  job_ = test::small_job(test::small_limits(true));
  std::vector<std::uint64_t> const digests(job_.plan.plan.tensor_bytes.size());  // of zeros
  for (bool const changed : {false, true}) {
    ClaimedTarget claimed = claim(true);
    BegunTarget begun = begin_target(task(), claimed, "posix");
    TargetRounds rounds(task(), claimed.target, begun, {});
    auto const change = [&] {
      if (!changed || comm_.rank() != 0) return;
      Plan const& plan = job_.plan.plan;  // whose first cell is rank 0's, and written once
      Region const first = plan.first_region_of(plan.cells.front());
      File file = File::open_for_writing(begun.layouts[first.to].path);
      file.write_at(first.dst_offset_bytes, std::vector<std::byte>(1, std::byte{1}));
      file.close();
    };
    write(rounds, SIZE_MAX, change);
    comm_.barrier();
    if (changed && comm_.size() > 1) change();  // other ranks may have written there since
    std::uint64_t early_bytes = 0;
    for (int i = 0; comm_.size() == 1 && i < 10000 && early_bytes == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      early_bytes = rounds.early()->bytes_read();
    }
    EXPECT_TRUE(comm_.size() > 1 || early_bytes > 0);
    CompletedTarget completed = complete_target(task(), claimed.target, begun, rounds, digests);
    auto const error =
        capture([&] { verify_target(task(), claimed, begun, rounds, completed, {}); });
    ASSERT_EQ(error.has_value(), changed);
    if (error) {
      EXPECT_EQ(error->kind(), ErrorKind::self_check);
      EXPECT_NE(error->sentence().find("CRC-64"), std::string::npos) << error->sentence();
    }
    claimed.target.keep(false);
    comm_.barrier();
  }
}

TEST_F(WholeTarget, WhatAnotherProgramPutsThereIsNotPublished) {
  ClaimedTarget claimed = claim();
  BegunTarget begun = begin_target(task(), claimed, "posix");
  TargetRounds rounds(task(), claimed.target, begun, {});
  write(rounds, SIZE_MAX);
  CompletedTarget const completed = complete_target(task(), claimed.target, begun, rounds, {});
  if (comm_.rank() == 0) write_text_file(claimed.target.folder() / "stranger", "x");
  auto const error = capture([&] { seal_target(task(), claimed, completed); });
  ASSERT_TRUE(error);
  EXPECT_NE(error->sentence().find("stranger"), std::string::npos) << error->sentence();
  claimed.target.keep(false);
}

TEST_F(WholeTarget, ThatIsGoneIsTheReasonOfWhateverError) {
  ClaimedTarget claimed = claim();
  Error const error(ErrorKind::io, "a write failed");
  EXPECT_EQ(claimed.target.explained(error).sentence(), "a write failed");
  comm_.barrier();
  if (comm_.rank() == 0) fs::remove_all(claimed.target.folder());
  comm_.barrier();
  Error const now = claimed.target.explained(error);
  EXPECT_EQ(now.kind(), ErrorKind::target);
  EXPECT_NE(now.sentence().find("no longer exists"), std::string::npos) << now.sentence();
}

TEST_F(WholeTarget, ThatIsNotWhatWasWrittenPassesNoGate) {
  make(End::published);
  fs::path const folder = folder_ / "staged";
  auto const gate = [&] {
    (void)pass_gate({spec_, job_.source.value, job_.plan, folder, {}}, comm_);
  };
  auto const alone = [&](std::function<void()> const& work) {
    comm_.barrier();
    if (comm_.rank() == 0) work();
    comm_.barrier();
  };
  alone([&] { fs::rename(spec_.target.path, folder); });
  spec_.target.format = FormatId::huggingface;
  test::expect_refused(ErrorKind::self_check,
                       "is taken for a checkpoint of format \"dcp\", \"huggingface\" was written",
                       gate);
  spec_.target.format = FormatId::dcp;
  TargetFile const& file = job_.plan.files.front();
  alone([&] { fs::resize_file(folder / file.path, file.size_bytes - 1); });
  test::expect_refused(
      ErrorKind::io,
      fmt::format("has {} bytes, and {} were written", file.size_bytes - 1, file.size_bytes), gate);
  alone([&] {
    fs::resize_file(folder / file.path, file.size_bytes);
    for (fs::path const& one : {folder_, folder})
      fs::permissions(one, fs::perms(0711));  // others open files in it, and read no names
  });
  {
    test::AsOtherUser const user;
    if (user.is_other())
      test::expect_refused(ErrorKind::io, "cannot be listed: Permission denied", gate);
  }
  comm_.barrier();
  TargetTask const own = task();
  TargetFolders const gone(own, folder_ / "gone", {});
  test::expect_refused(ErrorKind::io, "gone: cannot be listed: No such file or directory",
                       [&] { (void)gone.check(); });
}

TEST_F(WholeTarget, IsOfRanksThatAgree) {
  std::vector<SharedFact> const facts{
      {"the command", "run", ErrorKind::usage, "Start all alike."},
      {"the job", std::to_string(comm_.rank()), ErrorKind::usage, "Start all alike."}};
  if (comm_.size() == 1) return check_same(comm_, facts);
  test::expect_refused(
      ErrorKind::usage,
      "the job is not the same on all ranks: \"0\" on rank 0, \"1\" on rank 1. Start all alike.",
      [&] { check_same(comm_, facts); });
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
