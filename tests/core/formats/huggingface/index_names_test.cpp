// docs/formats/huggingface.md, rule 7. File names that an index must not reach: none is opened,
// each is refused with the tensor and the reason.

#include <gtest/gtest.h>

#include "core/formats/huggingface/shards.hpp"
#include "tests/core/formats/huggingface/folder_files.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::huggingface {
namespace {

std::vector<std::string> const hostile_names = {
    "../x.safetensors",
    "..",
    ".",
    "../",
    "../../x.safetensors",
    "/etc/passwd",
    "/x.safetensors",
    "//x.safetensors",
    "a/../../x.safetensors",
    "a/../x.safetensors",
    "a/x.safetensors",
    "./x.safetensors",
    "./../x.safetensors",
    "a//x.safetensors",
    "x.safetensors/",
    "x.safetensors/.",
    "x.safetensors/..",
    "..\\x.safetensors",
    "a\\..\\..\\x.safetensors",
    "C:\\x.safetensors",
    "\\\\server\\share\\x.safetensors",
    std::string("x\0.safetensors", 14),
    std::string("x.safetensors\0", 14),
    std::string("../../etc/passwd\0.safetensors", 29),
    "x\n.safetensors",
    "x\x1b[2J.safetensors",
    "x\x7f.safetensors",
    "",
    " ",
    ".safetensors",
    "..safetensors",
    ".hidden.safetensors",
    "...safetensors",
    "x.bin",
    "x.safetensors.bin",
    "x.SAFETENSORS",
    "x.safetensors ",
    "safetensors",
    "pytorch_model.bin",
    "config.json",
    "file:///etc/passwd",
    "https://example.com/x.safetensors",
    "~/x.safetensors",
    "$HOME/x.safetensors",
    std::string(244, 'x') + ".safetensors",
    std::string(100'000, 'x') + ".safetensors",
    "a/" + std::string(5000, '/') + "x.safetensors",
};

TEST(HuggingFaceIndexNames, EveryHostileNameIsRefusedWithItsTensor) {
  EXPECT_GE(hostile_names.size(), 40U);
  ScratchFolder const scratch("huggingface_names");
  write_weights(
      scratch.path().parent_path() / (scratch.path().filename().string() + "/x.safetensors"),
      {"x"});
  for (std::string const& name : hostile_names) {
    write_text_file(scratch.path() / index_name,
                    index_text({{"x", "x.safetensors"}, {"model.embed", name}}));
    std::string const sentence = refusal(scratch.path());
    EXPECT_NE(sentence.find("tensor 'model.embed': the file name '"), std::string::npos)
        << json_quoted(name).substr(0, 100) << ": " << sentence;
    EXPECT_EQ(sentence.find('\x1b'), std::string::npos);
    EXPECT_LT(sentence.size(), 1000U);
  }
}

/// Further behind than what is parsed at a time.
TEST(HuggingFaceIndexNames, ANameThatComesBackIsRefused) {
  ScratchFolder const scratch("huggingface_names");
  std::vector<std::pair<std::string, std::string>> map;
  for (int i = 0; i < 20'000; ++i)
    map.emplace_back(fmt::format("model.layers.{}.norm", i), "x.safetensors");
  map.push_back(map.front());
  write_text_file(scratch.path() / index_name, index_text(map));
  EXPECT_NE(refusal(scratch.path()).find("the key \"model.layers.0.norm\" appears twice"),
            std::string::npos);
}

TEST(HuggingFaceIndexNames, AReferenceLayoutIsHeldToTheSameRule) {
  std::vector<TensorSpec> const tensors = {{"x", DType::u8, {1}}};
  for (std::string const& name : hostile_names) {
    std::optional<Folder> folder(std::in_place);
    folder->weight_map = {{"x", name}};
    ReferenceWeights reference(folder);
    EXPECT_THROW(plan_shards(tensors, default_largest_shard_bytes, reference), Error)
        << json_quoted(name).substr(0, 100);
  }
}

TEST(HuggingFaceIndexNames, OrdinaryNamesPass) {
  for (char const* const name :
       {"model-00001-of-00061.safetensors", "model.safetensors-00001-of-00002.safetensors",
        "shard_00.safetensors", "a..b.safetensors", "modèle.safetensors", "a b.safetensors",
        "a:b.safetensors"})
    EXPECT_EQ(shard_name_problem(name), "") << name;
  EXPECT_EQ(shard_name_problem(std::string(243, 'x') + ".safetensors"), "");
}

}  // namespace
}  // namespace reshard::huggingface
