#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/base/files/file.hpp"
#include "tests/core/formats/huggingface/folder_files.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::huggingface {
namespace {

namespace fs = std::filesystem;
using testing::Test;

class HuggingFaceFolder : public Test {
 protected:
  ScratchFolder scratch_{"huggingface_folder"};
  fs::path root_ = scratch_.path();

  void text(std::string const& name, std::string_view content) const {
    write_text_file(root_ / name, content);
  }
  void weights(std::string const& name, std::vector<std::string> const& names) const {
    write_weights(root_ / name, names);
  }
  void two_shards() const {
    weights("b.safetensors", {"y"});
    weights("a.safetensors", {"x"});
    text("model.safetensors.index.json",
         index_text({{"y", "b.safetensors"}, {"x", "a.safetensors"}},
                    R"({"total_size": 2, "note": "kept"})"));
  }
};

TEST_F(HuggingFaceFolder, TheIndexDecidesAndKeepsItsOrder) {
  two_shards();
  text("config.json", R"({"hidden_size": 8, "limit": Infinity})");
  Folder const folder = open_folder(root_);
  EXPECT_EQ(folder.files, (std::vector<fs::path>{"a.safetensors", "b.safetensors"}));
  EXPECT_EQ(folder.weight_map, (WeightMap{{"y", "b.safetensors"}, {"x", "a.safetensors"}}));
  EXPECT_EQ(*folder.index_metadata.find("note"), Json("kept"));
  EXPECT_EQ(*folder.config.find("hidden_size"), Json(8));
  EXPECT_EQ(*folder.config.find("limit"), Json().set("__float__", "Infinity"));
  EXPECT_EQ(folder.config_text, R"({"hidden_size": 8, "limit": Infinity})");
  EXPECT_TRUE(folder.warnings.empty());
  EXPECT_TRUE(looks_like_folder(root_));
}

TEST_F(HuggingFaceFolder, NamesOfShardsAreNotParsed) {
  weights("model.safetensors-00001-of-00002.safetensors", {"x"});
  weights("shard_00.safetensors", {"y"});
  text("model.safetensors.index.json",
       index_text(
           {{"x", "model.safetensors-00001-of-00002.safetensors"}, {"y", "shard_00.safetensors"}}));
  EXPECT_EQ(open_folder(root_).files.size(), 2U);
}

TEST_F(HuggingFaceFolder, OneFileNeedsNoIndex) {
  weights("model.safetensors", {"x"});
  Folder const folder = open_folder(root_);
  EXPECT_EQ(folder.files, (std::vector<fs::path>{"model.safetensors"}));
  EXPECT_TRUE(folder.weight_map.empty());
  EXPECT_TRUE(folder.config.is_null());
}

TEST_F(HuggingFaceFolder, TheOnlyFileMayHaveAnotherName) {
  weights("pruned.safetensors", {"x"});
  EXPECT_EQ(open_folder(root_).files, (std::vector<fs::path>{"pruned.safetensors"}));
}

TEST_F(HuggingFaceFolder, ConsolidatedFilesAndTheOriginalFolderAreIgnored) {
  weights("model.safetensors", {"x"});
  weights("consolidated.safetensors", {"tok_embeddings"});
  weights("consolidated-00001-of-00002.safetensors", {"tok_embeddings"});
  fs::create_directory(root_ / "original");
  write_weights(root_ / "original" / "consolidated.00.safetensors", {"z"});
  Folder const folder = open_folder(root_);
  EXPECT_EQ(folder.files, (std::vector<fs::path>{"model.safetensors"}));
  EXPECT_TRUE(folder.sidecars.empty());
  EXPECT_TRUE(folder.warnings.empty());
}

TEST_F(HuggingFaceFolder, OtherFoldersAreLeftAndSaid) {
  weights("model.safetensors", {"x"});
  for (char const* name : {"1_Pooling", "additional_chat_templates", ".git"})
    fs::create_directory(root_ / name);
  Folder const folder = open_folder(root_);
  ASSERT_EQ(folder.warnings.size(), 1U);
  EXPECT_NE(folder.warnings.front().find("1_Pooling/, additional_chat_templates/: folders beside"),
            std::string::npos)
      << folder.warnings.front();
}

TEST_F(HuggingFaceFolder, StaleShardsAreSaidAndNotRead) {
  two_shards();
  weights("model-00007-of-00009.safetensors", {"old"});
  Folder const folder = open_folder(root_);
  EXPECT_EQ(folder.files.size(), 2U);
  ASSERT_EQ(folder.warnings.size(), 1U);
  EXPECT_NE(folder.warnings[0].find("model-00007-of-00009.safetensors"), std::string::npos);
}

struct BadFolder {
  std::string what;
  std::vector<std::pair<std::string, std::string>>
      files;  ///< name and content; *.safetensors hold one tensor x
  std::vector<std::string> says;
};

TEST_F(HuggingFaceFolder, EveryUnusableFolderIsRefusedWithTheNextStep) {
  std::string const index = "model.safetensors.index.json";
  std::vector<BadFolder> const cases = {
      {"empty", {}, {"holds neither", "Name the folder with the weights"}},
      {"several files, no index",
       {{"a.safetensors", ""}, {"b.safetensors", ""}},
       {"2 *.safetensors files (a.safetensors, b.safetensors)", "no model.safetensors.index.json"}},
      {"only pickles",
       {{"pytorch_model-00001-of-00002.bin", ""}},
       {"pickled (pytorch_model-00001-of-00002.bin)", "expected *.safetensors", "save_pretrained"}},
      {"only consolidated",
       {{"consolidated.safetensors", ""}},
       {"weights under Mistral's own names", "and no params.json"}},
      {"missing shards",
       {{"a.safetensors", ""},
        {index,
         index_text({{"x", "a.safetensors"}, {"y", "b.safetensors"}, {"z", "c.safetensors"}})}},
       {"2 of the 3 files that the index names are missing: b.safetensors, c.safetensors"}},
      {"index is no JSON", {{index, "{"}}, {index, "not valid JSON"}},
      {"index is an array", {{index, "[]"}}, {"has no \"weight_map\""}},
      {"index without map", {{index, "{}"}}, {"has no \"weight_map\""}},
      {"empty map", {{index, R"({"weight_map": {}})"}}, {"names no tensor"}},
      {"map is an array", {{index, R"({"weight_map": []})"}}, {"names no tensor"}},
      {"a number for a file",
       {{index, R"({"weight_map": {"x": 1}})"}},
       {"tensor 'x'", "the file is not a string"}},
      {"null for a file",
       {{index, R"({"weight_map": {"x": null}})"}},
       {"the file is not a string"}},
      {"a tensor twice",
       {{index, R"({"weight_map": {"x": "a.safetensors", "x": "b.safetensors"}})"}},
       {"appears twice"}},
      {"metadata is a list",
       {{index, R"({"metadata": [], "weight_map": {"x": "a.safetensors"}})"}},
       {"\"metadata\" is not an object"}},
      {"pickles in the index",
       {{index, R"({"weight_map": {"x": "pytorch_model.bin"}})"}, {"pytorch_model.bin", ""}},
       {"does not end in .safetensors"}},
      {"config is no JSON",
       {{"model.safetensors", ""}, {"config.json", "{"}},
       {"config.json", "not valid JSON"}},
      {"config is a list",
       {{"model.safetensors", ""}, {"config.json", "[]"}},
       {"config.json", "not a JSON object"}},
  };
  for (BadFolder const& each : cases) {
    fs::remove_all(root_);
    fs::create_directory(root_);
    for (auto const& [name, content] : each.files)
      name.ends_with(".safetensors") ? weights(name, {"x"}) : text(name, content);
    std::string const sentence = refusal(root_);
    for (std::string const& part : each.says)
      EXPECT_NE(sentence.find(part), std::string::npos) << each.what << ": " << sentence;
  }
}

TEST_F(HuggingFaceFolder, AMissingFolderIsRefusedAndIsNoFolder) {
  EXPECT_NE(refusal(root_ / "none").find("cannot be listed"), std::string::npos);
  EXPECT_FALSE(looks_like_folder(root_ / "none"));
  EXPECT_FALSE(looks_like_folder(root_));
}

TEST_F(HuggingFaceFolder, PickledFoldersLookLikeFoldersSoThatTheirErrorIsSeen) {
  text("pytorch_model.bin", "");
  EXPECT_TRUE(looks_like_folder(root_));
}

TEST_F(HuggingFaceFolder, SidecarsAreEverythingButWeightsIndexesConfigAndHiddenFiles) {
  two_shards();
  for (char const* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "merges.txt",
        "chat_template.jinja", "modeling_x.py", "vocab.tiktoken", "LICENSE", "README.md",
        "hf_quant_config.json", "weird name.txt"})
    text(name, "{}");
  for (char const* name :
       {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "x.PT",
        "x.gguf", "tf_model.h5", "flax_model.msgpack", "model.onnx", "x.ckpt",
        "consolidated.safetensors", "consolidated.safetensors.index.json", ".gitattributes",
        "manifest.json"})
    text(name, "{}");
  fs::create_directory(root_ / "onnx");
  ASSERT_EQ(::mkfifo((root_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(open_folder(root_).sidecars,
            (std::vector<std::string>{"LICENSE", "README.md", "chat_template.jinja",
                                      "generation_config.json", "hf_quant_config.json",
                                      "merges.txt", "modeling_x.py", "tokenizer.json",
                                      "tokenizer.model", "vocab.tiktoken", "weird name.txt"}));
}

TEST_F(HuggingFaceFolder, AHugeSidecarIsLeftAndSaid) {
  weights("model.safetensors", {"x"});
  File::create(root_ / "core.dump").resize(largest_sidecar_bytes + 1);
  Folder const folder = open_folder(root_);
  EXPECT_TRUE(folder.sidecars.empty());
  ASSERT_EQ(folder.warnings.size(), 1U);
  EXPECT_NE(folder.warnings[0].find("core.dump: 488.3 MiB, not copied"), std::string::npos)
      << folder.warnings[0];
}

TEST_F(HuggingFaceFolder, AReferenceNeedsItsConfigButNoWeights) {
  text("model.safetensors.index.json", index_text({{"x", "a.safetensors"}}));
  EXPECT_THROW(open_reference(root_), Error);
  text("config.json", "{}");
  text("tokenizer.json", "{}");
  Folder const reference = open_reference(root_);
  EXPECT_EQ(reference.weight_map.size(), 1U);
  EXPECT_EQ(reference.sidecars, (std::vector<std::string>{"tokenizer.json"}));
  EXPECT_EQ(reference.config_text, "{}");
  EXPECT_THROW(open_reference(root_ / "none"), Error);
  text("model.safetensors.index.json", index_text({{"x", "../a.safetensors"}}));
  EXPECT_THROW(open_reference(root_), Error);
}

TEST_F(HuggingFaceFolder, SidecarsAreCopiedByteForByte) {
  weights("model.safetensors", {"x"});
  std::vector<std::byte> large(5'000'001);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::byte>(i % 251);
  scratch_.file("tokenizer.json", large);
  text("empty.txt", "");
  fs::create_directory(root_ / "out");
  Folder const folder = open_folder(root_);
  for (std::string const& name : folder.sidecars) copy_sidecar(folder, name, root_ / "out");
  EXPECT_EQ(bytes_of(root_ / "out" / "tokenizer.json"), large);
  EXPECT_EQ(bytes_of(root_ / "out" / "empty.txt").size(), 0U);
}

TEST_F(HuggingFaceFolder, LinksInTheCacheOfTheHubAreFollowed) {
  fs::path const repo = root_ / "models--org--name";
  fs::path const snapshot = repo / "snapshots" / "0123abc";
  fs::create_directories(repo / "blobs");
  fs::create_directories(snapshot / "sub");
  write_weights(repo / "blobs" / "f00d", {"x"});
  write_text_file(repo / "blobs" / "beef", index_text({{"x", "a.safetensors"}}));
  write_text_file(repo / "blobs" / "cafe", "{}");
  fs::create_symlink("../../blobs/f00d", snapshot / "a.safetensors");
  fs::create_symlink("../../blobs/beef", snapshot / "model.safetensors.index.json");
  fs::create_symlink("../../blobs/cafe", snapshot / "tokenizer.json");
  fs::create_symlink("../../blobs/cafe", snapshot / "config.json");
  fs::create_symlink("../../../blobs/f00d", snapshot / "sub" / "model.safetensors");
  Folder const folder = open_folder(snapshot);
  EXPECT_EQ(folder.files, (std::vector<fs::path>{"a.safetensors"}));
  EXPECT_EQ(folder.sidecars, (std::vector<std::string>{"tokenizer.json"}));
  EXPECT_EQ(open_folder(snapshot / "sub").files.size(), 1U);
  fs::create_directory_symlink(snapshot, root_ / "latest");
  EXPECT_EQ(open_folder(root_ / "latest").files.size(), 1U);
}

TEST_F(HuggingFaceFolder, LinksInsideTheFolderAreFollowed) {
  fs::create_directory(root_ / "deep");
  write_weights(root_ / "deep" / "w", {"x"});
  fs::create_symlink("deep/w", root_ / "model.safetensors");
  EXPECT_EQ(refusal(root_), "");
}

TEST_F(HuggingFaceFolder, LinksThatLeaveTheFolderAreRefused) {
  ScratchFolder const elsewhere("huggingface_elsewhere");
  write_weights(elsewhere.path() / "w", {"x"});
  std::vector<fs::path> const targets = {elsewhere.path() / "w",
                                         "../" + elsewhere.path().filename().string() + "/w",
                                         "/etc/passwd", "/dev/zero", ".."};
  for (fs::path const& target : targets) {
    fs::remove(root_ / "model.safetensors");
    fs::create_symlink(target, root_ / "model.safetensors");
    EXPECT_NE(refusal(root_).find("model.safetensors is a symbolic link that points outside the "
                                  "folder"),
              std::string::npos)
        << target << ": " << refusal(root_);
  }
}

TEST_F(HuggingFaceFolder, AFolderNamedSnapshotsGivesNoLeaveToReadOtherPlaces) {
  fs::create_directories(root_ / "repo" / "blobs");
  fs::create_directories(root_ / "repo" / "snapshots" / "r");
  write_weights(root_ / "secret", {"x"});
  fs::create_symlink("../../../secret", root_ / "repo" / "snapshots" / "r" / "model.safetensors");
  EXPECT_NE(refusal(root_ / "repo" / "snapshots" / "r").find("points outside the folder"),
            std::string::npos);
  fs::create_symlink("../../secret", root_ / "repo" / "blobs" / "link");
  fs::remove(root_ / "repo" / "snapshots" / "r" / "model.safetensors");
  fs::create_symlink("../../blobs/link", root_ / "repo" / "snapshots" / "r" / "model.safetensors");
  EXPECT_NE(refusal(root_ / "repo" / "snapshots" / "r").find("points outside the folder"),
            std::string::npos);
}

TEST_F(HuggingFaceFolder, IndexConfigAndSidecarsMayNotBeLinksOutside) {
  weights("model.safetensors", {"x"});
  fs::create_symlink("/etc/passwd", root_ / "tokenizer.json");
  Folder const folder = open_folder(root_);
  EXPECT_TRUE(folder.sidecars.empty());
  ASSERT_EQ(folder.warnings.size(), 1U);
  EXPECT_NE(folder.warnings[0].find("tokenizer.json: a symbolic link that points outside the "
                                    "folder"),
            std::string::npos);
  EXPECT_THROW(copy_sidecar(folder, "tokenizer.json", root_), Error);
  fs::create_symlink("/etc/passwd", root_ / "config.json");
  EXPECT_NE(refusal(root_).find("config.json is a symbolic link that points outside the folder"),
            std::string::npos);
  fs::remove(root_ / "config.json");
  fs::create_symlink("/etc/passwd", root_ / "model.safetensors.index.json");
  EXPECT_NE(refusal(root_).find("index.json is a symbolic link that points outside the folder"),
            std::string::npos);
}

TEST_F(HuggingFaceFolder, BrokenCircularAndSpecialFilesAreRefused) {
  fs::create_symlink("model.safetensors", root_ / "model.safetensors");
  EXPECT_NE(refusal(root_).find("missing"), std::string::npos) << refusal(root_);
  fs::remove(root_ / "model.safetensors");
  fs::create_symlink("nothing", root_ / "model.safetensors");
  EXPECT_NE(refusal(root_).find("missing"), std::string::npos) << refusal(root_);
  fs::remove(root_ / "model.safetensors");
  ASSERT_EQ(::mkfifo((root_ / "model.safetensors").c_str(), 0600), 0);
  EXPECT_NE(refusal(root_).find("not a regular file"), std::string::npos) << refusal(root_);
  fs::remove(root_ / "model.safetensors");
  fs::create_directory(root_ / "model.safetensors");
  EXPECT_NE(refusal(root_).find("not a regular file"), std::string::npos) << refusal(root_);
}

}  // namespace
}  // namespace reshard::huggingface
