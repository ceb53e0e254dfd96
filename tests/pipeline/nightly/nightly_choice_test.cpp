#include "pipeline/nightly/nightly_choice.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "core/containers/saves.hpp"

#include "core/base/files/file.hpp"
#include "pipeline/nightly/nightly.hpp"
#include "pipeline/nightly/nightly_after.hpp"
#include "pipeline/nightly/nightly_target.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names(std::vector<ListedFolder> const& folders) {
  std::vector<std::string> out;
  for (ListedFolder const& folder : folders) out.push_back(folder.name);
  return out;
}

using Names = std::vector<std::string>;

TEST(StepOfName, IsTheLastNumber) {
  EXPECT_EQ(step_of_name("iter_0001000"), 1000);
  EXPECT_EQ(step_of_name("global_step_10"), 10);
  EXPECT_EQ(step_of_name("checkpoint-500"), 500);
  EXPECT_EQ(step_of_name("epoch-2-step-50"), 50);
  EXPECT_EQ(step_of_name("step_100_hf"), 100);
  EXPECT_EQ(step_of_name("release"), 0);
  EXPECT_EQ(step_of_name("999999999999999999"), 999'999'999'999'999'999);
  EXPECT_EQ(step_of_name("1234567890123456789"), std::nullopt);
  EXPECT_EQ(step_of_name("best"), std::nullopt);
  EXPECT_EQ(step_of_name(""), std::nullopt);
}

TEST(UnfinishedNames, AreThoseOfSavesAndCopiesUnderWay) {
  for (std::string_view const name :
       {".iter_1.part", "tmp-checkpoint-500", "step-5.tmp", "iter_7.part"})
    EXPECT_TRUE(is_unfinished_name(name)) << name;
  for (std::string_view const name : {"iter_1", "checkpoint-500", "tmpl-5"})
    EXPECT_FALSE(is_unfinished_name(name)) << name;
}

TEST(NewestFirst, CountsNumbersAndNotDigits) {
  EXPECT_EQ(names(newest_first({{"iter_9", 50}, {"iter_0000010", 1}, {"iter_100", 2}})),
            (Names{"iter_100", "iter_0000010", "iter_9"}));
  EXPECT_EQ(names(newest_first({{"release", 9}, {"iter_1", 1}})), (Names{"iter_1", "release"}));
}

TEST(NewestFirst, TakesTimesWhenANameHasNoNumber) {
  EXPECT_EQ(names(newest_first({{"iter_100", 5}, {"best", 7}, {"iter_200", 6}})),
            (Names{"best", "iter_200", "iter_100"}));
  EXPECT_TRUE(newest_first({}).empty());
}

TEST(Tracker, SaysWhichStepsCount) {
  EXPECT_EQ(tracker_word("iter_0000100", 100), TrackerWord::names);
  EXPECT_EQ(tracker_word("iter_0000101", 100), TrackerWord::beyond);
  EXPECT_EQ(tracker_word("iter_0000099", 100), TrackerWord::nothing);
  EXPECT_EQ(tracker_word("iter_0000100", std::nullopt), TrackerWord::nothing);
  EXPECT_EQ(tracker_word("best", 100), TrackerWord::nothing);
  EXPECT_EQ(tracker_word("iter_0000001", 0), TrackerWord::beyond);  // the tracker says "release"
}

TEST(Settling, CountsWholeSeconds) {
  constexpr std::int64_t second = 1'000'000'000;
  EXPECT_EQ(unsettled_seconds(100 * second, 159 * second + 1, 60), 59);
  EXPECT_EQ(unsettled_seconds(100 * second, 160 * second, 60), std::nullopt);
  EXPECT_EQ(unsettled_seconds(200 * second, 100 * second, 60), 0);  // clocks differ
  EXPECT_EQ(unsettled_seconds(200 * second, 100 * second, 0), std::nullopt);
  EXPECT_EQ(unsettled_seconds(std::numeric_limits<std::int64_t>::min(), 100 * second, 60),
            std::nullopt);
}

TEST(Surplus, IsWhatIsOlderThanTheLastK) {
  std::vector<ListedFolder> const targets = {
      {"iter_300", 0}, {"iter_1000", 0}, {"iter_200", 0}, {"iter_400", 0}};
  EXPECT_EQ(surplus_targets(targets, {"iter_1000", 0}, 2), (Names{"iter_200", "iter_300"}));
  EXPECT_EQ(surplus_targets(targets, {"iter_1000", 0}, 1),
            (Names{"iter_200", "iter_300", "iter_400"}));
  EXPECT_TRUE(surplus_targets(targets, {"iter_1000", 0}, 4).empty());
  EXPECT_TRUE(surplus_targets(targets, {"iter_1000", 0}, 0).empty());
}

TEST(Surplus, IsNeverNewerThanTheCurrentOne) {
  // Training was set back to an earlier step.
  std::vector<ListedFolder> const targets = {
      {"iter_300", 0}, {"iter_1000", 0}, {"iter_900", 0}, {"iter_200", 0}};
  EXPECT_EQ(surplus_targets(targets, {"iter_300", 0}, 2), (Names{"iter_200"}));
  EXPECT_EQ(surplus_targets(targets, {"iter_300", 0}, 1), (Names{"iter_200"}));
  EXPECT_TRUE(surplus_targets(targets, {"iter_300", 0}, 4).empty());
  EXPECT_EQ(surplus_targets({{"best", 30}, {"final", 20}, {"first", 10}}, {"final", 20}, 1),
            (Names{"first"}));
}

TEST(Surplus, NeedsNoCurrentOneAmongTheTargets) {
  // That one was not made by a nightly job.
  EXPECT_EQ(surplus_targets({{"iter_9", 0}, {"iter_8", 0}, {"iter_7", 0}, {"iter_2", 0}},
                            {"iter_7", 0}, 1),
            (Names{"iter_2"}));
  EXPECT_EQ(surplus_targets({{"iter_9", 0}, {"iter_8", 0}, {"iter_2", 0}}, {"iter_5", 0}, 1),
            (Names{"iter_2"}));
  EXPECT_EQ(surplus_targets({{"iter_9", 50}, {"iter_8", 40}, {"iter_2", 10}}, {"best", 20}, 1),
            (Names{"iter_2"}));
}

TEST(Abandoned, IsWhatIsConvertedBeyondTheTrackersStep) {
  EXPECT_EQ(abandoned_note({{"iter_1500", 0}, {"iter_2000", 0}}, 1500, "/train", "/serving"),
            "the tracker in /train names step 1500, but iter_2000 is newer and converted. If "
            "training went back, remove it from /train and from /serving.");
  EXPECT_EQ(abandoned_note({{"iter_900", 0}, {"iter_3000", 0}, {"iter_2000", 0}, {"iter_2000", 0}},
                           1500, "/train", "/serving"),
            "the tracker in /train names step 1500, but iter_3000, iter_2000 are newer and "
            "converted. If training went back, remove them from /train and from /serving.");
  EXPECT_EQ(abandoned_note({{"iter_1500", 0}, {"iter_900", 0}}, 1500, "/train", "/serving"), "");
  EXPECT_EQ(abandoned_note({{"best", 7}}, 1500, "/train", "/serving"), "");
  EXPECT_EQ(abandoned_note({}, 1500, "/train", "/serving"), "");
}

TEST(WouldStay, IsTheNewestFewWithWhatIsThere) {
  ListedFolder const current{"iter_900", 9};
  std::vector<ListedFolder> const there = {{"iter_500", 5}};
  EXPECT_TRUE(would_stay(there, current, {"iter_800", 8}, 3));
  EXPECT_TRUE(would_stay(there, current, {"iter_800", 8}, 2));
  EXPECT_FALSE(would_stay(there, current, {"iter_800", 8}, 1));
  EXPECT_TRUE(would_stay(there, current, {"iter_400", 4}, 3));
  EXPECT_FALSE(would_stay(there, current, {"iter_400", 4}, 2));
  EXPECT_TRUE(would_stay(there, current, {"iter_400", 4}, 0));  // all stay
  EXPECT_TRUE(would_stay({{"iter_900", 9}, {"iter_500", 5}}, current, {"iter_500", 5}, 2));
}

TEST(WouldStay, CountsWhatIsNewerThanTheCurrentOne) {
  // Training was set back.
  EXPECT_FALSE(would_stay({{"iter_1000", 10}}, {"iter_300", 3}, {"iter_200", 2}, 2));
  EXPECT_TRUE(would_stay({{"iter_1000", 10}}, {"iter_300", 3}, {"iter_200", 2}, 3));
}

TEST(WouldStay, TakesTimesOfSourcesWhereANameHasNoNumber) {
  EXPECT_TRUE(would_stay({{"first", 10}}, {"best", 30}, {"last", 20}, 2));
  EXPECT_FALSE(would_stay({{"last", 20}}, {"best", 30}, {"first", 10}, 2));
}

TEST(Surplus, IsNothingWithoutACurrentOne) {
  EXPECT_TRUE(surplus_targets({{"iter_1", 0}, {"iter_2", 0}}, {}, 1).empty());
  EXPECT_TRUE(surplus_targets({{"a", 1}, {"b", 3}, {"c", 2}}, {}, 1).empty());
}

TEST(RefuseTarget, SaysWhoMadeIt) {
  JobSpec job;
  job.source.path = "/train/iter_7";
  job.target.path = "/serving/iter_7";
  job.target.format = FormatId::huggingface;
  for (auto const& [found, words] : std::vector<std::pair<FoundTarget, std::string_view>>{
           {{TargetState::other_format, "megatron"},
            "a nightly job with target.format = \"megatron\" made it, this one has target.format = "
            "\"huggingface\""},
           {{TargetState::of_run, ""}, "`reshard run` made it from /train/iter_7"},
           {{TargetState::extended, "notes.md"}, "is outdated, and holds notes.md"},
           {{TargetState::foreign, ""}, "no reshard.json in it states that it was made from"}})
    test::expect_refused(ErrorKind::target, words, [&] { refuse_target(job, found); });
}

class NightlySearch : public testing::Test {
 protected:
  void SetUp() override {
    job_.source.path = (scratch_.path() / "train").string();
    job_.target.path = (scratch_.path() / "serving").string();
  }
  void expect(ErrorKind kind, std::string_view words) const {
    test::expect_refused(kind, words, [&] { (void)find_nightly_task(job_, Comm::world()); });
  }

  ScratchFolder scratch_{"nightly_search"};
  JobSpec job_;
};

TEST_F(NightlySearch, NeedsAFolderOfCheckpointsAndRecordsOfWhatIsConverted) {
  expect(ErrorKind::source, "train: does not exist. source.path of a nightly job is the folder");
  fs::create_directory(job_.source.path);
  write_text_file(fs::path(job_.source.path) / "model.safetensors", "x");
  expect(ErrorKind::usage, "train: is a checkpoint itself");
  job_.run.verify = VerifyChoice::off;
  expect(ErrorKind::usage, "run.verify = \"off\": writes no reshard.json");
  fs::remove_all(job_.source.path);
  fs::create_directory(job_.source.path);
  job_.run.verify = VerifyChoice::streamed;
  job_.nightly.verify_subset = 3;
  expect(ErrorKind::usage,
         "nightly.verify_subset = 3: compares files with what was read back of "
         "them, but run.verify = \"streamed\"");
}

TEST_F(NightlySearch, ATargetThatDisappearsHasNothingToRunACommandFor) {
  fs::create_directory(job_.target.path);
  NightlyTask task;
  task.job = job_;
  task.job.target.path = (fs::path(job_.target.path) / "iter_7").string();
  job_.nightly.after = "exit 0";
  AfterReport const report = run_after(job_, task, {.just_made = true}, nullptr, Comm::world());
  EXPECT_EQ(report.code, exit_code(ErrorKind::target));
  EXPECT_NE(report.error.find("iter_7: disappeared before nightly.after was run for it"),
            std::string::npos)
      << report.error;
}

}  // namespace
}  // namespace reshard
