#include "core/containers/dcp/directory.hpp"

#include <gtest/gtest.h>

#include "core/containers/dcp/item_paths.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard::dcp {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view torch_dist_json =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";

/// A scratch folder that can be filled with files.
struct Tree {
  static inline int trees = 0;
  ScratchFolder folder{fmt::format("dcp_directory_{}", ++trees)};
  fs::path root = folder.path();

  void put(std::string const& name, std::string_view content = "x") const {
    fs::create_directories((root / name).parent_path());
    write_text_file(root / name, content);
  }
  std::string refused(std::string const& below = "") const {
    try {
      open_directory(root / below);
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      return error.sentence();
    }
    return "opened";
  }
};

bool contains(std::string const& sentence, std::string_view words) {
  return sentence.find(words) != std::string::npos;
}

TEST(DcpDirectory, TakesTheFolderItself) {
  Tree const tree;
  tree.put("run/.metadata");
  tree.put("run/__0_0.distcp");
  tree.put("run/tokenizer/vocab.json");
  tree.put("run/run_config.yaml");
  tree.put("run/.metadata.bck");
  tree.put("run/integrity.json");
  Directory const found = open_directory(tree.root / "run/");
  EXPECT_EQ(found.root, tree.root / "run");
  EXPECT_EQ(found.folder, tree.root / "run");
  EXPECT_FALSE(found.iteration);
  EXPECT_FALSE(found.release);
  EXPECT_FALSE(found.has_backend_file);
  EXPECT_FALSE(found.has_common_file);
  EXPECT_EQ(found.side_files, (std::vector<std::string>{"run_config.yaml", "tokenizer"}));
  EXPECT_TRUE(looks_like_dcp(tree.root / "run"));
}

TEST(DcpDirectory, FolderNamesTellTheIteration) {
  struct Case {
    char const* name;
    std::optional<std::int64_t> iteration;
    bool release = false;
  };
  for (Case const& named :
       {Case{"iter_0000010", 10}, Case{"step-7", 7}, Case{"step_8", 8}, Case{"global_step_30", 30},
        Case{"global_step31", 31}, Case{"release", {}, true}, Case{"model", {}}, Case{"step-x", {}},
        Case{"iter_99999999999999999999", {}}}) {
    Tree const tree;
    tree.put(std::string(named.name) + "/.metadata");
    Directory const found = open_directory(tree.root / named.name);
    EXPECT_EQ(found.iteration, named.iteration) << named.name;
    EXPECT_EQ(found.release, named.release) << named.name;
  }
}

TEST(DcpDirectory, FollowsTheTracker) {
  for (std::string const text : {"10", "10\n", " 10 "}) {
    Tree const tree;
    tree.put("latest_checkpointed_iteration.txt", text);
    tree.put("iter_0000010/.metadata");
    tree.put("iter_0000010/metadata.json", torch_dist_json);
    tree.put("iter_0000010/common.pt");
    tree.put("iter_0000020/.metadata");
    Directory const found = open_directory(tree.root);
    EXPECT_EQ(found.root, tree.root);
    EXPECT_EQ(found.folder, tree.root / "iter_0000010");
    EXPECT_EQ(found.iteration, 10);
    EXPECT_TRUE(found.has_backend_file);
    EXPECT_TRUE(found.has_common_file);
    EXPECT_TRUE(looks_like_dcp(tree.root));
  }
  Tree const tree;
  tree.put("latest_checkpointed_iteration.txt", "release");
  tree.put("release/.metadata");
  EXPECT_TRUE(open_directory(tree.root).release);
  EXPECT_EQ(open_directory(tree.root).folder, tree.root / "release");
}

TEST(DcpDirectory, TakesTheOnlySave) {
  Tree const tree;
  tree.put("step-10/.metadata");
  tree.put("step-20/__0_0.distcp");  // aborted
  tree.put("logs/.metadata");
  EXPECT_EQ(open_directory(tree.root).folder, tree.root / "step-10");
  EXPECT_EQ(open_directory(tree.root).iteration, 10);
  tree.put("step-20/.metadata");
  std::string const sentence = tree.refused();
  EXPECT_TRUE(contains(sentence, "holds 2 saves (step-20, step-10)")) << sentence;
  EXPECT_TRUE(looks_like_dcp(tree.root));
}

TEST(DcpDirectory, TakesWeightsAndStateOfAccelerate) {
  Tree const tree;
  tree.put("checkpoint-40/pytorch_model_fsdp_0/.metadata");
  tree.put("checkpoint-40/random_states_0.pkl");
  fs::path const save = tree.root / "checkpoint-40";
  EXPECT_TRUE(looks_like_dcp(save));
  EXPECT_EQ(open_directory(save).root, save);
  EXPECT_EQ(open_directory(save).folder, save / "pytorch_model_fsdp_0");
  EXPECT_EQ(open_directory(save).states, fs::path());
  EXPECT_EQ(open_directory(save).iteration, 40);
  tree.put("checkpoint-40/optimizer_0/__0_0.distcp");
  EXPECT_TRUE(contains(tree.refused("checkpoint-40"), "optimizer_0: has no .metadata"))
      << tree.refused("checkpoint-40");
  tree.put("checkpoint-40/optimizer_0/.metadata");
  EXPECT_EQ(open_directory(save).states, save / "optimizer_0");
  Metadata metadata;
  metadata.files = {"__0_0.distcp", "__0_0.distcp"};
  metadata.first_joined = 1;
  EXPECT_EQ(item_paths(open_directory(save), metadata),
            (std::vector<fs::path>{save / "pytorch_model_fsdp_0/__0_0.distcp",
                                   save / "optimizer_0/__0_0.distcp"}));
  tree.put("checkpoint-40/model.safetensors");  // a model of its own
  EXPECT_FALSE(is_accelerate_save(save));
  tree.put("two/pytorch_model_fsdp_0/.metadata");
  tree.put("two/pytorch_model_fsdp_1/.metadata");
  EXPECT_FALSE(is_accelerate_save(tree.root / "two"));
}

TEST(DcpDirectory, TrackersThatLieAreRefused) {
  Tree const tree;
  tree.put("iter_0000010/.metadata");
  tree.put("latest_checkpointed_iteration.txt", "20");
  EXPECT_TRUE(contains(tree.refused(), "names iteration 20, but the saves here are: iter_0000010"))
      << tree.refused();
  tree.put("latest_checkpointed_iteration.txt", "newest");
  EXPECT_TRUE(contains(tree.refused(), "found \"newest\"")) << tree.refused();
  EXPECT_FALSE(looks_like_dcp(tree.root));
  tree.put("latest_checkpointed_iteration.txt", "");
  EXPECT_TRUE(contains(tree.refused(), "found \"\"")) << tree.refused();
  tree.put("latest_checkpointed_iteration.txt", "10");
  tree.put("iter_10/.metadata");
  EXPECT_TRUE(contains(tree.refused(), "several folders are of it: iter_0000010, iter_10"))
      << tree.refused();
}

TEST(DcpDirectory, SaysWhatIsWrongWithoutTheCatalogue) {
  Tree const aborted;
  aborted.put("__0_0.distcp");
  aborted.put(".metadata.tmp");
  EXPECT_TRUE(contains(aborted.refused(), "is incomplete. Found: .metadata.tmp, __0_0.distcp"))
      << aborted.refused();
  EXPECT_TRUE(looks_like_dcp(aborted.root));

  Tree const by_rank;
  by_rank.put("__0.metadata");
  by_rank.put("__1.metadata");
  by_rank.put("__0_0.distcp");
  EXPECT_TRUE(contains(by_rank.refused(), "a metadata file for each rank")) << by_rank.refused();

  Tree const zarr;
  zarr.put("metadata.json", R"({"sharded_backend": "zarr"})");
  EXPECT_TRUE(contains(zarr.refused(), "stored by the backend \"zarr\"")) << zarr.refused();
  zarr.put(".metadata");
  EXPECT_TRUE(contains(zarr.refused(), "stored by the backend \"zarr\"")) << zarr.refused();

  Tree const odd;
  odd.put(".metadata");
  for (std::string const json : {"", "[]", "{}", "{\"sharded_backend\": 1}", "not json"}) {
    odd.put("metadata.json", json);
    EXPECT_TRUE(contains(odd.refused(), "metadata.json")) << odd.refused();
  }

  Tree const other;
  other.put("model.safetensors");
  EXPECT_TRUE(
      contains(other.refused(), "expected a folder with .metadata, found model.safetensors"))
      << other.refused();
  EXPECT_FALSE(looks_like_dcp(other.root));
  EXPECT_TRUE(contains(other.refused("model.safetensors"), "found a file"));
  EXPECT_TRUE(contains(other.refused("nowhere"), "found nothing"));
  EXPECT_FALSE(looks_like_dcp(other.root / "nowhere"));
}

TEST(DcpFlavour, FollowsSideFilesAndKeys) {
  auto const with_tensor = [](std::string name) {
    Metadata metadata;
    metadata.tensors.push_back({.name = std::move(name), .dtype = DType::f32, .shape = {1}});
    return metadata;
  };
  EXPECT_EQ(flavour_of({}, with_tensor("w")), Flavour::plain);
  EXPECT_EQ(flavour_of({}, with_tensor("model.module.decoder.x")), Flavour::fsdp_dtensor);
  Directory megatron;
  megatron.has_backend_file = true;
  EXPECT_EQ(flavour_of(megatron, with_tensor("model.module.decoder.x")), Flavour::torch_dist);
  Directory without_json;
  without_json.has_common_file = true;
  EXPECT_EQ(flavour_of(without_json, with_tensor("w")), Flavour::torch_dist);
  Metadata with_item = with_tensor("w");
  with_item.objects.push_back({.name = "common_state/shard_0_1", .item = {}});
  EXPECT_EQ(flavour_of({}, with_item), Flavour::torch_dist);
  for (std::string const name : {"linear_qkv", "q_proj"}) {
    Metadata numbered = with_tensor("model.decoder.layers.0.self_attention." + name + ".weight");
    EXPECT_EQ(flavour_of({}, numbered), Flavour::plain);
    numbered.objects.push_back({.name = "args", .item = {}});
    EXPECT_EQ(flavour_of({}, numbered), Flavour::plain) << "other programs save args, too";
    numbered.objects.push_back({.name = "checkpoint_version", .item = {}});
    EXPECT_EQ(flavour_of({}, numbered), name == "q_proj" ? Flavour::plain : Flavour::torch_dcp);
  }
}

/// {'iteration': 7, 'x': tensor of 3 bytes}
std::string common_bytes(bool in_list, std::string_view archive) {
  pickle::Document document;
  document.root = document.add_dict();
  document.set(document.root, "iteration", document.add_int(7));
  document.set(document.root, "x", document.add_tensor(DType::u8, {3}));
  document.set(document.root, "none", document.add_tensor(DType::f32, {0}));
  if (in_list) document.root = document.add_list({document.root});
  return torch_file_bytes(
      document, archive, [](std::size_t i) { return i == 0 ? std::string("abc") : std::string(); });
}

void expect_common(CommonState const& common, fs::path const& path) {
  EXPECT_EQ(common.file, path);
  pickle::Document const& document = common.torch.document;
  pickle::NodeId const iteration = document.find(common.root, "iteration");
  ASSERT_NE(iteration, pickle::no_node);
  EXPECT_EQ(document.at(iteration).integer, 7);
  std::string bytes(3, '\0');
  FileTensor const tensor = file_tensor(
      common.torch, document.tensors[document.at(document.find(common.root, "x")).index], "x");
  File::open_for_reading(path).read_at(tensor.offset_bytes,
                                       std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, "abc");
}

TEST(DcpCommon, IsReadFromItsFileOrFromItsItem) {
  Tree const tree;
  std::string const item = common_bytes(true, "archive");
  tree.put(".metadata");
  tree.put("__0_0.distcp", std::string(333, 'x') + item + "rest");
  Metadata metadata;
  EXPECT_FALSE(read_common(open_directory(tree.root), metadata));
  metadata.files = {"other", "__0_0.distcp"};
  metadata.objects = {{.name = "rng_state/shard_0_1", .item = {}},
                      {.name = "common_state/shard_0_1",
                       .item = {.file = 1, .offset_bytes = 333, .size_bytes = item.size()}}};
  auto common = read_common(open_directory(tree.root), metadata);
  ASSERT_TRUE(common);
  expect_common(*common, tree.root / "__0_0.distcp");
  tree.put("common.pt", common_bytes(false, "common"));
  common = read_common(open_directory(tree.root), metadata);
  ASSERT_TRUE(common);
  expect_common(*common, tree.root / "common.pt");
}

TEST(DcpCommon, OtherValuesAreErrors) {
  Tree const tree;
  tree.put(".metadata");
  auto const sentence = [&](Metadata const& metadata) -> std::string {
    try {
      read_common(open_directory(tree.root), metadata);
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      return error.sentence();
    }
    return "read";
  };
  std::string const item = common_bytes(false, "archive");
  tree.put("__0_0.distcp", item);
  Metadata metadata;
  metadata.files = {"__0_0.distcp"};
  metadata.objects = {{.name = "common_state/shard_0_1", .item = {.size_bytes = item.size()}}};
  EXPECT_TRUE(contains(sentence(metadata), "is a dict of")) << sentence(metadata);
  metadata.objects[0].item.size_bytes -= 1;
  EXPECT_TRUE(contains(sentence(metadata), "__0_0.distcp, bytes [0, ")) << sentence(metadata);
  tree.put("common.pt", common_bytes(true, "common"));
  EXPECT_TRUE(contains(sentence(metadata), "the common state is a list")) << sentence(metadata);
  tree.put("common.pt", "");
  EXPECT_TRUE(contains(sentence(metadata), "an empty file")) << sentence(metadata);
}

TEST(DcpCommon, BackendFileHasTheFourKeysOfEveryRelease) {
  Json const json = parse_json(backend_json(), "test");
  ASSERT_EQ(json.members()->size(), 4U);
  EXPECT_EQ(*json.find("sharded_backend")->text(), "torch_dist");
  EXPECT_EQ(*json.find("common_backend")->text(), "torch");
  EXPECT_EQ(*json.find("sharded_backend_version")->integer(), 1);
  EXPECT_EQ(*json.find("common_backend_version")->integer(), 1);
}

}  // namespace
}  // namespace reshard::dcp
