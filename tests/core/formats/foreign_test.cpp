// What is said of folders and files that are of other programs.

#include <algorithm>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "core/formats/foreign.hpp"
#include "core/formats/format.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

struct Folder {
  std::vector<std::string> names;
  std::string says;
};

TEST(Foreign, EachProgramIsNamed) {
  std::vector<Folder> const folders = {
      {{}, "empty folder"},
      {{"model-Q4_K_M.gguf"}, "llama.cpp"},
      {{"context/", "weights/"}, "Name its weights: a/b/weights."},
      {{"blobs/", "refs/", "snapshots/"}, "cache"},
      {{"_CHECKPOINT_METADATA", "d/"}, "Orbax"},
      {{"consolidated.00.pth", "params.json"}, "Meta"},
      {{"checkpoint-100/", "checkpoint-200/", "runs/"}, "such as a/b/checkpoint-200."},
      {{"model.pt"}, "torch.save"},
      {{"model.nemo"}, "tar"},
      {{".zgroup", "layer/"}, "--dist-ckpt-format torch_dist"},
      {{"models--Qwen--Qwen3/"}, "below a/b/models--Qwen--Qwen3/snapshots."},
      {{"config.json", "rank0.engine"}, "holds rank0.engine, an engine of TensorRT-LLM"},
      {{"model.ckpt.data-00000-of-00001", "model.ckpt.index"}, "TensorFlow"},
      {{"weights.npz"}, "NumPy"},
      {{"thesis.tex", "figures/"}, "no *.one (One), no two. It holds figures, thesis.tex. Name"},
  };
  std::vector<std::string_view> const signs = {"*.one (One)", "two"};
  for (Folder folder : folders) {
    std::ranges::sort(folder.names);
    std::string const said = foreign_folder("a/b", folder.names, {}, signs);
    EXPECT_NE(said.find(folder.says), std::string::npos) << said;
    EXPECT_TRUE(said.ends_with('.')) << said;
  }
}

TEST(Foreign, AFolderOfCheckpointsNamesThem) {
  std::vector<std::string> const names = {"final/", "notes.txt", "other/", "step-1/"};
  std::vector<std::string> const checkpoints = {"final", "step-1"};
  EXPECT_EQ(foreign_folder("a/b", names, checkpoints, {}),
            "is not a checkpoint itself. It holds checkpoints: final, step-1. Name one, such "
            "as a/b/step-1.");
}

TEST(Foreign, OnlyNamesOfOneProgramSayWhoseAFolderIs) {
  std::vector<std::string> const engine = {"config.json", "rank0.engine"};
  std::vector<std::string> const plain = {"config.json", "notes.txt"};
  EXPECT_NE(folder_of_another_program("a", engine).find("TensorRT-LLM"), std::string::npos);
  EXPECT_EQ(folder_of_another_program("a", plain), "");
}

TEST(Foreign, OfAFileItsFolderIsNamed) {
  EXPECT_NE(foreign_file("a/b/model.safetensors").find("Name its folder: a/b."), std::string::npos);
  EXPECT_NE(foreign_file("model.safetensors").find("Name its folder: ."), std::string::npos);
  EXPECT_NE(foreign_file("a/x.gguf").find("llama.cpp"), std::string::npos);
  EXPECT_NE(foreign_file("a/x.nemo").find("tar"), std::string::npos);
  EXPECT_NE(foreign_file("a/model_optim_rng.pt").find("torch.save"), std::string::npos);
  EXPECT_NE(foreign_file("a/config.json").find("Name its folder: a."), std::string::npos);
  EXPECT_NE(foreign_file("a/job.toml").find("`reshard run`"), std::string::npos);
  EXPECT_NE(foreign_file("a/model.tar.gz").find("Unpack it"), std::string::npos);
  EXPECT_NE(foreign_file("a/x.onnx").find("ONNX"), std::string::npos);
  EXPECT_NE(foreign_file("a/x").find("neither a directory nor an HDF5 file"), std::string::npos);
}

TEST(Foreign, AFolderOfAnotherProgramIsRefused) {
  ScratchFolder const scratch("foreign");
  std::vector<Folder> const folders = {
      {{"model-Q4_K_M.gguf"}, "the format of llama.cpp"},
      {{"global_step_10/", "run.log"}, "is not a supported format: no"},
      {{"context/", "weights/"}, "is a NeMo 2 folder. Name its weights"},
      {{"blobs/", "refs/", "snapshots/"}, "is a model in Hugging Face's cache"},
      {{"_CHECKPOINT_METADATA", "d/"}, "is an Orbax checkpoint"},
      {{"consolidated.00.pth", "params.json"}, "the format of Meta's own releases"},
      {{"checkpoint-100/", "checkpoint-200/"}, "is the output folder of a trainer"},
      {{"model.pt"}, "by its name a file of torch.save"},
      {{"model.nemo"}, "a NeMo 1 archive. Unpack it"},
      {{".zgroup", "layer/"}, "holds Zarr arrays"},
      {{"models--Qwen--Qwen3/"}, "is the cache of the Hugging Face Hub"},
      {{"rank0.engine"}, "holds rank0.engine, an engine of TensorRT-LLM"},
  };
  for (std::size_t i = 0; i < folders.size(); ++i) {
    fs::path const path = scratch.path() / std::to_string(i);
    fs::create_directory(path);
    for (std::string const& name : folders[i].names)
      name.ends_with('/') ? void(fs::create_directory(path / name))
                          : void(std::ofstream(path / name));
    test::expect_refused(ErrorKind::source, folders[i].says, [&] { choose_format(path); });
  }
}

TEST(Foreign, AFileThatIsNoCheckpointIsRefused) {
  ScratchFolder const scratch("foreign_file");
  std::vector<std::pair<std::string, std::string>> const files = {
      {"x.gguf", "the format of llama.cpp"},
      {"x.nemo", "name the folder with the mp_rank_* folders"},
      {"model.safetensors", "is one file of a checkpoint. Name its folder"},
      {"model_optim_rng.pt", "by its name a single torch.save file"},
      {"x.onnx", "is an ONNX graph"},
      {"model.tar.gz", "is an archive. Unpack it"},
      {"job.toml", "is a TOML file, not a checkpoint"},
      {"x", "is neither a directory nor an HDF5 file"},
  };
  for (auto const& [name, says] : files)
    test::expect_refused(ErrorKind::source, says,
                         [&] { choose_format(scratch.empty_file(name, 0)); });
}

}  // namespace
}  // namespace reshard
