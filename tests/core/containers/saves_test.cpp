// Which saves lie in a folder of a run, what they lack, and that an older one is not taken in
// silence.

#include "core/containers/saves.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void touch(fs::path const& file) {
  fs::create_directories(file.parent_path());
  write_text_file(file, "");
}

/// iter_0000005 and 10 are complete, 20 has lost a file; 30 never got its .metadata.
struct RunFolder {
  ScratchFolder folder{"saves"};
  fs::path root = folder.path() / "run";

  RunFolder() {
    for (char const* file :
         {"iter_0000005/mp_rank_00/model_optim_rng.pt",
          "iter_0000010/mp_rank_00/model_optim_rng.pt", "iter_0000010/mp_rank_01/model_rng.pt",
          "iter_0000020/mp_rank_00/model_optim_rng.pt", "iter_0000020/mp_rank_01/other.txt",
          "iter_0000030/common.pt", "logs_7/x.txt", "x.txt"})
      touch(root / file);
  }

  std::string note(char const* save) const { return newer_saves_note(root, root / save); }
};

TEST(Saves, StepsAreAtTheEndOfNames) {
  EXPECT_EQ(step_of_folder("global_step12"), (SaveStep{.iteration = 12}));
  EXPECT_EQ(step_of_folder("iter_0000010"), (SaveStep{.iteration = 10}));
  EXPECT_EQ(step_of_folder("release"), (SaveStep{.release = true}));
  for (char const* name : {"global_step3_universal", "latest", "", "x_1234567890123456789"})
    EXPECT_EQ(step_of_folder(name), std::nullopt) << name;
}

TEST(Saves, AreListedWithWhatTheyLack) {
  RunFolder const run;
  EXPECT_EQ(listed_saves(saves_of_run(run.root)),
            "iter_0000030 (has no .metadata, which is written last), iter_0000020 (mp_rank_01 has "
            "no model_optim_rng.pt), iter_0000010, iter_0000005");
  EXPECT_EQ(listed_saves(saves_of_run(run.root / "logs_7")), "none");
}

TEST(Saves, NewerOnesAreNamed) {
  RunFolder const run;
  std::string const place = run.root.string();
  EXPECT_EQ(run.note("iter_0000010"),
            place +
                ": iter_0000010 is taken, and newer ones are there: iter_0000030 (has no "
                ".metadata, which is written last), iter_0000020 (mp_rank_01 has no "
                "model_optim_rng.pt). Name one by its path to take it");
  write_text_file(run.root / tracker_name, "20");
  fs::create_directory_symlink("iter_0000030", run.root / "newest");
  EXPECT_EQ(run.note("iter_0000020/mp_rank_00"),
            place +
                ": iter_0000020 is taken, which latest_checkpointed_iteration.txt names, and a "
                "newer one is there: iter_0000030 (the link 'newest' leads to it; has no "
                ".metadata, which is written last). Name one by its path to take it");
  EXPECT_EQ(run.note("iter_0000030"), "");
}

TEST(Saves, AChoiceWithoutATrackerIsSaid) {
  ScratchFolder const folder{"unnamed_saves"};
  fs::path const root = folder.path() / "run";
  for (char const* save : {"step-5", "step-10"}) touch(root / save / ".metadata");
  EXPECT_EQ(newer_saves_note(root, root / "step-10"),
            root.string() + ": step-10 is taken, the newest of 2 saves, because no file names one");
  touch(root / "latest");
  EXPECT_EQ(newer_saves_note(root, root / "step-10"), "");
}

TEST(Saves, FoldersOfAccelerateAreNoSteps) {
  EXPECT_EQ(save_below("/run", "/run/pytorch_model_fsdp_0"), "");
  EXPECT_EQ(save_below("/run", "/run/checkpoint-5/pytorch_model_fsdp_0"), "checkpoint-5");
}

TEST(Saves, WhatTheUserNamedIsNoChoice) {
  RunFolder const run;
  EXPECT_EQ(newer_saves_note(run.root / "iter_0000005", run.root / "iter_0000005"), "");
  EXPECT_EQ(newer_saves_note(run.root / "iter_0000005", run.root / "iter_0000005/weights"), "");
  EXPECT_EQ(run.note("logs_7"), "");
  EXPECT_EQ(run.note("."), "");
  EXPECT_EQ(run.note("release").find(run.root.string() + ": release is taken, and newer ones"), 0U)
      << run.note("release");
}

TEST(Saves, ATrackerThatSaysNothingIsRefusedWithWhatIsThere) {
  RunFolder const run;
  write_text_file(run.root / tracker_name, "");
  try {
    read_tracker(run.root, "give a folder");
    FAIL();
  } catch (Error const& error) {
    EXPECT_NE(error.sentence().find("found \"\". The saves here are: iter_0000030 (has no "
                                    ".metadata, which is written last), iter_0000020 ("),
              std::string::npos)
        << error.sentence();
  }
}

}  // namespace
}  // namespace reshard
