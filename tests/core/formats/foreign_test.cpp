// What is said of folders and files that are of other programs.

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "core/formats/foreign.hpp"

namespace reshard {
namespace {

struct Folder {
  std::vector<std::string> names;
  std::string says;
};

TEST(Foreign, EachProgramIsNamed) {
  std::vector<Folder> const folders = {
      {{}, "empty folder"},
      {{"model-Q4_K_M.gguf"}, "llama.cpp"},
      {{"global_step10/", "latest", "zero_to_fp32.py"}, "DeepSpeed"},
      {{"context/", "weights/"}, "Name its weights: a/b/weights."},
      {{"blobs/", "refs/", "snapshots/"}, "cache"},
      {{"_CHECKPOINT_METADATA", "d/"}, "Orbax"},
      {{"consolidated.00.pth", "params.json"}, "Meta"},
      {{"checkpoint-100/", "checkpoint-200/", "runs/"}, "such as a/b/checkpoint-200."},
      {{"model.pt"}, "torch.save"},
      {{"thesis.tex", "figures/"}, "It holds figures, thesis.tex. Name"},
  };
  for (Folder folder : folders) {
    std::ranges::sort(folder.names);
    std::string const said = foreign_folder("a/b", folder.names);
    EXPECT_NE(said.find(folder.says), std::string::npos) << said;
    EXPECT_TRUE(said.ends_with('.')) << said;
  }
}

/// Their readers say what is missing.
TEST(Foreign, DamagedFoldersOfOurFormatsAreLeftToTheirReaders) {
  for (std::string const name : {"latest_checkpointed_iteration.txt", "iter_0000010/",
                                 "mp_rank_00/", "metadata.json", "__0_0.distcp", "config.json"}) {
    std::vector<std::string> const names = {name, "model.pt"};
    EXPECT_EQ(foreign_folder("a", names), "") << name;
  }
}

TEST(Foreign, OfAFileItsFolderIsNamed) {
  EXPECT_NE(foreign_file("a/b/model.safetensors").find("Name its folder: a/b."), std::string::npos);
  EXPECT_NE(foreign_file("model.safetensors").find("Name its folder: ."), std::string::npos);
  EXPECT_NE(foreign_file("a/x.gguf").find("llama.cpp"), std::string::npos);
  EXPECT_NE(foreign_file("a/x.nemo").find("tar"), std::string::npos);
  EXPECT_NE(foreign_file("a/model_optim_rng.pt").find("torch.save"), std::string::npos);
  EXPECT_NE(foreign_file("a/x").find("neither a directory nor an HDF5 file"), std::string::npos);
}

}  // namespace
}  // namespace reshard
