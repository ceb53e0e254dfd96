// Folders of programs that train with Megatron: which one it is, and where its parts are. The
// weights are empty files here; tests/peers/test_folder_shapes.py reads real ones.

#include "core/formats/shapes.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

class Shapes : public testing::Test {
 protected:
  fs::path put(std::string const& name, std::string const& text = "") {
    fs::path const path = scratch_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }
  fs::path at(std::string const& name) const { return scratch_.path() / name; }

  ScratchFolder scratch_{"shapes"};
};

TEST_F(Shapes, BridgeKeepsItsSettingsInTheIteration) {
  put("run/iter_0000010/.metadata");
  put("run/iter_0000010/run_config.yaml",
      "model: {num_layers: 2, hf_model_id: Qwen/Qwen3-4B}\npeft: {dim: 6, alpha: 12}\n");
  EXPECT_EQ(folder_of_weights(at("run")), at("run"));  // an ordinary root
  auto const shape = find_shape(at("run/iter_0000010"), {});
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->program, "Megatron-Bridge");
  EXPECT_EQ(shape->evidence, "run_config.yaml");
  EXPECT_EQ(shape->table, "megatron_bridge");
  EXPECT_EQ(shape->facts.find("num_layers")->dump(), "2");
  EXPECT_EQ(shape->origin, "run_config.yaml: hf_model_id = Qwen/Qwen3-4B");
  EXPECT_EQ(shape->alpha, Json(12));
}

TEST_F(Shapes, DamagedSettingsAreReportedAndNotLeftOut) {
  put("iter_0000010/.metadata");
  put("iter_0000010/run_config.yaml", "model: {num_layers: 2");
  EXPECT_THROW((void)find_shape(at("iter_0000010"), {}), Error);
}

TEST_F(Shapes, NemoKeepsWeightsInAFolderOfTheirOwn) {
  put("nemo/weights/.metadata");
  put("nemo/context/model.yaml", "config: {num_layers: 2}\n");
  EXPECT_EQ(folder_of_weights(at("nemo")), at("nemo/weights"));
  EXPECT_EQ(folder_of_weights(at("nemo/weights")), at("nemo/weights"));
  auto const shape = find_shape(at("nemo/weights"), {});
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->program, "NeMo 2");
  EXPECT_EQ(shape->save, at("nemo"));
  EXPECT_EQ(shape->facts.find("num_layers")->dump(), "2");
}

TEST_F(Shapes, OfARunOfVerlTheTrackerNamesTheSave) {
  for (std::string const step : {"global_step_5", "global_step_10", "global_step_15"}) {
    put(step + "/actor/model/dist_ckpt/.metadata");
    put(step + "/actor/ckpt_contents.json", "{}");
    put(step + "/actor/model/huggingface/config.json", "{}");
  }
  EXPECT_THROW((void)folder_of_weights(scratch_.path()), Error);
  put("latest_checkpointed_iteration.txt", "10");
  fs::path const weights = at("global_step_10/actor/model/dist_ckpt");
  EXPECT_EQ(folder_of_weights(scratch_.path()), weights);
  EXPECT_EQ(folder_of_weights(at("global_step_10")), weights);
  EXPECT_EQ(folder_of_weights(at("global_step_10/actor")), weights);
  auto const shape = find_shape(weights, {});
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->program, "verl");
  EXPECT_EQ(shape->configs, std::vector<fs::path>{at("global_step_10/actor/model/huggingface")});
  EXPECT_EQ(shape->optimizer, "");
  EXPECT_EQ(step_of(*shape), 10);
  put("global_step_10/actor/optimizer/dist_ckpt/.metadata");
  EXPECT_EQ(find_shape(weights, {})->optimizer, "optimizer/dist_ckpt");
}

TEST_F(Shapes, VerlsFirstLayoutHasNoFolderForTheModel) {
  put("actor/dist_ckpt/.metadata");
  put("actor/huggingface/config.json", "{}");
  EXPECT_EQ(folder_of_weights(at("actor")), at("actor/dist_ckpt"));
  auto const shape = find_shape(at("actor/dist_ckpt"), {});
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->program, "verl");
  EXPECT_EQ(step_of(*shape), std::nullopt);
}

TEST_F(Shapes, FilesOfRanksOfFsdpNeedNoSign) {
  for (std::string const step : {"global_step_5", "global_step_10", "global_step_15"}) {
    put(step + "/actor/model_world_size_1_rank_0.pt");
    put(step + "/critic/model_world_size_1_rank_0.pt");
  }
  EXPECT_THROW((void)folder_of_weights(scratch_.path()), Error);
  put("latest_checkpointed_iteration.txt", "10");
  EXPECT_EQ(folder_of_weights(scratch_.path()), at("global_step_10/actor"));
  EXPECT_EQ(folder_of_weights(at("global_step_5")), at("global_step_5/actor"));
  EXPECT_EQ(folder_of_weights(at("global_step_5/critic")), at("global_step_5/critic"));
  put("sky/global_step_2/policy/model_world_size_1_rank_0.pt");
  put("sky/global_step_4/policy/model_world_size_1_rank_0.pt");
  put("sky/latest_ckpt_global_step.txt", "2");
  EXPECT_EQ(folder_of_weights(at("sky")), at("sky/global_step_2/policy"));
  put("lmms/checkpoint-3/pytorch_model_fsdp_0/model_world_size_1_rank_0.pt");
  EXPECT_EQ(folder_of_weights(at("lmms")), at("lmms/checkpoint-3"));
  EXPECT_FALSE(find_shape(at("global_step_10/actor"), {}));
}

TEST_F(Shapes, SwiftKeepsArgsBesideTheTracker) {
  put("v0/checkpoint-7/iter_0000007/.metadata");
  put("v0/checkpoint-7/args.json", R"({"model_dir": "/models/x"})");
  EXPECT_EQ(folder_of_weights(at("v0")), at("v0/checkpoint-7"));
  auto const shape = find_shape(at("v0/checkpoint-7/iter_0000007"), {});
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->program, "ms-swift");
  EXPECT_EQ(shape->configs, std::vector<fs::path>{at("v0/checkpoint-7")});
  EXPECT_EQ(shape->origin, "args.json: model_dir = /models/x");
  EXPECT_TRUE(shape->facts.is_null());
}

TEST_F(Shapes, SlimeAndMilesAreToldByTheirArgs) {
  put("iter_0000010/.metadata");
  EXPECT_FALSE(find_shape(at("iter_0000010"), Json::object().set("num_layers", 2)));
  Json args = Json::object().set("rollout_global_dataset", true).set("hf_checkpoint", "/m");
  EXPECT_EQ(find_shape(at("iter_0000010"), args)->program, "slime");
  EXPECT_EQ(find_shape(at("iter_0000010"), args)->origin, "args: hf_checkpoint = /m");
  args.set("miles_router_timeout", Json());
  EXPECT_EQ(find_shape(at("iter_0000010"), args)->program, "miles");
  put("rollout/global_dataset_state_dict_10.pt");
  EXPECT_EQ(find_shape(at("iter_0000010"), {})->evidence,
            "rollout/global_dataset_state_dict_10.pt");
}

TEST_F(Shapes, OtherFoldersStayAsTheyAre) {
  put("iter_0000010/.metadata");
  EXPECT_FALSE(find_shape(at("iter_0000010"), {}));
  EXPECT_EQ(folder_of_weights(scratch_.path()), scratch_.path());
  put("weights/model.bin");
  put("context/notes.txt");
  EXPECT_EQ(folder_of_weights(scratch_.path()), scratch_.path());
}

TEST(DescribeAModel, NeedsTheSizesOfOne) {
  EXPECT_FALSE(describe_a_model({}));
  EXPECT_FALSE(describe_a_model(Json::object().set("num_layers", 2)));
  EXPECT_TRUE(describe_a_model(Json::object().set("num_layers", 2).set("hidden_size", 8)));
}

}  // namespace
}  // namespace reshard
