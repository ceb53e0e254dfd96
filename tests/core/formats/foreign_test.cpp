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
      {{"thesis.tex", "figures/"}, "no *.one (One), no two. It holds figures, thesis.tex. Name"},
  };
  std::vector<std::string_view> const signs = {"*.one (One)", "two"};
  for (Folder folder : folders) {
    std::ranges::sort(folder.names);
    std::string const said = foreign_folder("a/b", folder.names, signs);
    EXPECT_NE(said.find(folder.says), std::string::npos) << said;
    EXPECT_TRUE(said.ends_with('.')) << said;
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
