#include "core/formats/torch_dist/dist_objects.hpp"

#include <gtest/gtest.h>

#include "core/formats/megatron/mcore/extra_state.hpp"
#include "core/formats/megatron/mcore/optimizer_groups.hpp"

namespace reshard {
namespace {

ObjectForm const stacked{true, 8, 64};
ObjectForm const separate{false, 8, 64};

struct KeyCase {
  char const* module_key;
  char const* stacked;
  char const* separate;
};

TEST(ObjectKeys, MoveNumbersBetweenNameAndAxis) {
  for (KeyCase const& each : {
           KeyCase{"decoder.layers.3.self_attention.linear_qkv._extra_state",
                   "decoder.layers.self_attention.linear_qkv._extra_state/shard_3_8",
                   "decoder.layers.3.self_attention.linear_qkv._extra_state/shard_0_1"},
           KeyCase{"decoder.layers.3.mlp.experts.local_experts.7.linear_fc1._extra_state",
                   "decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_3.7_8.64",
                   "decoder.layers.3.mlp.experts.experts.linear_fc1._extra_state/shard_7_64"},
           KeyCase{"mtp.layers.0.eh_proj._extra_state",
                   "mtp.layers.0.eh_proj._extra_state/shard_0_1",
                   "mtp.layers.0.eh_proj._extra_state/shard_0_1"},
           KeyCase{"decoder.final_layernorm._extra_state",
                   "decoder.final_layernorm._extra_state/shard_0_1",
                   "decoder.final_layernorm._extra_state/shard_0_1"},
       }) {
    EXPECT_EQ(object_key(each.module_key, stacked), each.stacked);
    EXPECT_EQ(object_key(each.module_key, separate), each.separate);
    EXPECT_EQ(module_state_key(each.stacked), each.module_key);
    EXPECT_EQ(module_state_key(each.separate), each.module_key);
  }
}

TEST(ObjectKeys, SingletonExpertsHaveTheirNumberInTheName) {
  EXPECT_EQ(
      module_state_key("decoder.layers.3.mlp.experts.experts.7.linear_fc1._extra_state/shard_0_1"),
      "decoder.layers.3.mlp.experts.local_experts.7.linear_fc1._extra_state");
}

TEST(ObjectKeys, OtherObjectsAreNoModuleState) {
  for (char const* key : {"rng_state/shard_0.1_2.2", "a._extra_state", "a._extra_state/shard_0",
                          "a._extra_state/shard_x_1", "a._extra_state/shard_0.1_2",
                          "a._extra_state/shard_0_-1", "", "/shard_0_1"})
    EXPECT_EQ(module_state_key(key), std::nullopt) << key;
  EXPECT_EQ(
      module_state_key("decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_3_8"),
      std::nullopt)
      << "an expert number is missing";
}

/// A projection whose parts have keys of their own is one module.
TEST(ModuleStates, AreThoseOfTheModuleThatPartsBelongTo) {
  ExtraStates const extras("te", "grouped", ForeignClasses::refuse);
  std::string const mixer = "decoder.layers.0.mixer.";
  for (char const* part : {"in_proj.weight", "in_proj.weight.z", "in_proj.weight.dt"})
    EXPECT_EQ(extras.keys_of(mixer + part),
              std::vector<std::string>{mixer + "in_proj._extra_state"});
  EXPECT_TRUE(extras.keys_of(mixer + "conv1d.weight.x").empty());
  EXPECT_TRUE(extras.keys_of(mixer + "A_log").empty());
}

TEST(ObjectKeys, TextAndPartsAgree) {
  std::string const text = "rng_state/shard_0.1_2.4";
  auto const parsed = parse_object_key(text);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->key, "rng_state");
  EXPECT_EQ(parsed->offsets, (std::vector<Index>{0, 1}));
  EXPECT_EQ(parsed->shape, (std::vector<Index>{2, 4}));
  EXPECT_EQ(text_of(*parsed), text);
}

using pickle::Document;
using pickle::NodeId;

NodeId group(Document& document, double decay, bool decoupled, bool expert) {
  NodeId const dict = document.add_dict();
  document.set(dict, "wd_mult", document.add_real(decay));
  document.set(dict, "lr_mult", document.add_real(1));
  document.set(dict, "is_decoupled_lr", document.add_bool(decoupled));
  document.set(dict, "is_expert_parallel", document.add_bool(expert));
  return dict;
}

NodeId settings(Document& document, std::vector<NodeId> groups) {
  NodeId const inner = document.add_dict();
  document.set(inner, "param_groups", document.add_list(std::move(groups)));
  NodeId const outer = document.add_dict();
  document.set(outer, "optimizer", inner);
  return outer;
}

/// {"optimizer": one optimizer's settings}
Document single_optimizer() {
  Document document;
  document.root = document.add_dict();
  document.set(
      document.root, "optimizer",
      settings(document, {group(document, 1, false, false), group(document, 0, false, false),
                          group(document, 1, true, false)}));
  return document;
}

std::vector<NodeId> groups_of(Document const& document, NodeId optimizer) {
  return document.at(document.find(document.find(optimizer, "optimizer"), "param_groups")).items;
}

TEST(OptimizerGroups, ExpertsGetTheGroupsThatTheyAreIn) {
  Document const common = single_optimizer();
  EXPECT_FALSE(has_several_optimizers(common));
  for (bool const biases : {false, true}) {
    Document document = common;
    split_optimizers(document, document.root, common, true, biases);
    EXPECT_TRUE(has_several_optimizers(document));
    auto const& chain = document.at(document.find(document.root, "optimizer")).items;
    ASSERT_EQ(chain.size(), 4U);
    EXPECT_EQ(groups_of(document, chain[1]).size(), 3U);
    auto const experts = groups_of(document, chain[3]);
    EXPECT_EQ(experts.size(), biases ? 2U : 1U);
    for (NodeId const expert : experts)
      EXPECT_TRUE(document.at(document.find(expert, "is_expert_parallel")).boolean);
    for (NodeId const other : groups_of(document, chain[1]))
      EXPECT_FALSE(document.at(document.find(other, "is_expert_parallel")).boolean);
  }
}

TEST(OptimizerGroups, JoiningKeepsEveryKindOfGroupOnce) {
  Document common;
  common.root = common.add_dict();
  NodeId const dense = settings(common, {group(common, 1, false, false)});
  NodeId const experts =
      settings(common, {group(common, 1, false, true), group(common, 0, false, true)});
  NodeId const chain = common.add_dict();
  common.at(chain).items = {common.add_int(0), dense, common.add_int(1), experts};
  common.set(common.root, "optimizer", chain);
  Document document = common;
  split_optimizers(document, document.root, common, false, false);
  EXPECT_FALSE(has_several_optimizers(document));
  auto const groups = groups_of(document, document.find(document.root, "optimizer"));
  ASSERT_EQ(groups.size(), 2U);
  for (NodeId const each : groups)
    EXPECT_FALSE(document.at(document.find(each, "is_expert_parallel")).boolean);
}

/// Muon and Adam, `experts` of each: all entries of a chain.
Document chain_of_kinds(bool experts) {
  Document common;
  common.root = common.add_dict();
  NodeId const chain = common.add_dict();
  for (Index number = 0; number < (experts ? 4 : 2); ++number) {
    common.at(chain).items.push_back(common.add_int(number));
    NodeId const one = settings(common, {group(common, 1, false, number % 2 == 1 && experts)});
    common.at(chain).items.push_back(one);
  }
  common.set(common.root, "optimizer", chain);
  return common;
}

TEST(OptimizerGroups, OptimizersOfSeveralKindsStayAsTheyAre) {
  for (bool const experts : {false, true}) {
    Document const common = chain_of_kinds(experts);
    EXPECT_TRUE(is_chain_of_kinds(common));
    Document document = common;
    split_optimizers(document, document.root, common, experts, false);
    EXPECT_EQ(pickle::dump(document), pickle::dump(common));
    EXPECT_THROW(split_optimizers(document, document.root, common, !experts, false), Error);
  }
}

TEST(OptimizerGroups, OneKindIsNoChainOfKinds) {
  EXPECT_FALSE(is_chain_of_kinds(single_optimizer()));
  Document const common = single_optimizer();
  Document document = common;
  split_optimizers(document, document.root, common, true, false);
  EXPECT_FALSE(is_chain_of_kinds(document));
}

TEST(OptimizerGroups, TheFormThatIsThereStays) {
  Document const common = single_optimizer();
  Document document = common;
  split_optimizers(document, document.root, common, false, false);
  EXPECT_EQ(pickle::dump(document), pickle::dump(common));
}

}  // namespace
}  // namespace reshard
