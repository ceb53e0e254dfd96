#include "pipeline/publication/claim/own_names.hpp"

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "pipeline/publication/claim/strangers.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

TEST(OwnNames, AreThoseOfACheckpoint) {
  for (char const* name :
       {"config.json", "model.safetensors", "model-00001-of-00002.safetensors",
        "model.safetensors.index.json", "tokenizer.json", "huggingface/config.json",
        "iter_0000010/mp_rank_00_001/model_optim_rng.pt", "mp_rank_00/distrib_optim.pt",
        "latest_checkpointed_iteration.txt", "release/.metadata", "iter_0000010/__0_0.distcp",
        "iter_0000010/huggingface/tokenizer_config.json", "common.pt", "part-00001-of-00002.h5",
        "global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt", "latest",
        "global_step5_universal/zero/model.norm.weight/fp32.pt", "reshard.json"})
    EXPECT_TRUE(is_checkpoint_file(name)) << name;
  for (char const* name : {"iter_0000010", "release", "mp_rank_00", "iter_0000010/mp_rank_00_001",
                           "huggingface", "global_step5_universal/zero/model.norm.weight"})
    EXPECT_TRUE(is_checkpoint_folder(name)) << name;
}

TEST(OwnNames, AreNotThoseOfWhatLiesBesideOne) {
  for (char const* name :
       {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "notes.txt",
        "README.md", "modeling_own.py", ".git/config.json", "checkpoint-5/model.safetensors",
        "extracted.safetensors", "data.h5", "runs/events.out", "mp_rank_00/notes.txt",
        "mp_rank_00/more/model_optim_rng.pt", "iter_0000010/latest",
        "iter_0000010/iter_0000010/common.pt", "huggingface/notes.txt"})
    EXPECT_FALSE(is_checkpoint_file(name)) << name;
  for (char const* name : {".git", "checkpoint-5", "runs", "iter_0000010/runs", "mp_rank_00/more"})
    EXPECT_FALSE(is_checkpoint_folder(name)) << name;
}

TEST(OwnNames, StrangersAreNamedOnceEach) {
  ScratchFolder const scratch("own_names");
  for (char const* name :
       {"checkpoint-5/a", "checkpoint-5/b", "runs/c", "z", "config.json", ".git/x"}) {
    make_folders((scratch.path() / name).parent_path());
    write_text_file(scratch.path() / name, "");
  }
  Strangers const found = strangers_in(scratch.path(), [](std::string const& name, bool is_folder) {
    return is_folder ? is_checkpoint_folder(name) : is_checkpoint_file(name);
  });
  EXPECT_EQ(found.count, 4U);
  EXPECT_EQ(text_of(found), ".git, checkpoint-5, runs and 1 more");
}

TEST(OwnNames, OfATargetToBeAreAllItsFiles) {
  ScratchFolder const scratch("own_names");
  make_folders(scratch.path() / "state");
  write_text_file(scratch.path() / "state" / "one", "");
  TargetDraft draft;
  draft.files.emplace_back().path = "model.safetensors";
  draft.texts.push_back({"config.json", "{}", false, {}});
  draft.reference.emplace();
  draft.reference->sidecars = {"README.md"};
  draft.reference_to = "huggingface";
  draft.side_copies = {{scratch.path() / "state", "state"}};
  EXPECT_EQ(files_to_write(draft),
            (std::set<std::string>{"config.json", "huggingface/README.md", "model.safetensors",
                                   "state", "state/one"}));
}

}  // namespace
}  // namespace reshard
