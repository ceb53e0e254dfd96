#include "core/formats/dcp/named_states.hpp"

#include <tuple>

#include <gtest/gtest.h>

namespace reshard::dcp {
namespace {

using Names = std::vector<std::string>;

/// Tensors of these names: steps are single values.
StoredTable table_of(Names const& names) {
  StoredTable table;
  for (std::string const& name : names)
    table.add_whole(name, DType::f32,
                    name.ends_with(".step") ? std::vector<Index>() : std::vector<Index>{4, 2},
                    {0, 0, 32});
  return table;
}

/// "WEIGHT SLOT" of each state.
Names states_of(NamedStates const& found) {
  Names result;
  for (NamedState const& one : found.states)
    result.push_back(std::string(one.weight) + " " + std::string(one.slot));
  return result;
}

TEST(NamedStates, AreFoundWhateverTheTrainerPutsBefore) {
  struct Case {
    char const *weights, *place, *prefix;
  };
  for (Case const& one : {Case{"model.", "optimizer.", "model."}, Case{"model.", "optim.", ""},
                          Case{"", "optimizer.", ""}, Case{"", "", ""},
                          Case{"app.model.", "app.optim.", "app.model."}}) {
    std::string const weight = one.weights + std::string("model.layers.0.up.weight");
    std::string const state = one.place + std::string("state.model.layers.0.up.weight");
    StoredTable const table = table_of({weight, state + ".exp_avg", state + ".step"});
    NamedStates const found = named_states(table, one.prefix);
    EXPECT_EQ(states_of(found), Names{weight + " exp_avg"}) << weight;
    ASSERT_EQ(found.steps.size(), 1U);
    EXPECT_EQ(found.steps[0].tensor, 2U);
    EXPECT_EQ(found.trainer, one.weights);
    EXPECT_EQ(found.fault, "");
  }
}

TEST(NamedStates, OfAPartHaveTheNameThatTheWholeModelGives) {
  StoredTable const table =
      table_of({"model.vision.up.weight", "model.text.up.weight",
                "optim.state.vision.up.weight.exp_avg", "optim.state.text.up.weight.exp_avg"});
  NamedStates const found = named_states(table, "model.text.");
  EXPECT_EQ(states_of(found), Names{"model.text.up.weight exp_avg"});
  EXPECT_EQ(found.elsewhere, std::vector<std::size_t>{2});
  EXPECT_EQ(found.fault, "");
}

TEST(NamedStates, WeightsMayBeCalledLikeThem) {
  StoredTable const table =
      table_of({"model.state.up.weight", "model.down.weight", "optim.state.state.up.weight.exp_avg",
                "optim.state.down.weight.exp_avg"});
  EXPECT_EQ(states_of(named_states(table, "")),
            (Names{"model.state.up.weight exp_avg", "model.down.weight exp_avg"}));
}

TEST(NamedStates, OfTwoModelsAreStrays) {
  StoredTable const table =
      table_of({"model.up.weight", "ema.up.weight", "optim.state.up.weight.exp_avg"});
  NamedStates const found = named_states(table, "");
  EXPECT_EQ(found.strays, std::vector<std::size_t>{2});
  EXPECT_NE(found.fault.find("'ema.up.weight' or to 'model.up.weight'"), std::string::npos)
      << found.fault;
  EXPECT_EQ(states_of(named_states(table, "model.")), Names{"model.up.weight exp_avg"});
}

TEST(NamedStates, OfAFusedParameterFollowItsParts) {
  std::string const before = "model.layers.0.qkv.";
  std::string const state = "optimizer.state.layers.0.qkv.wqkv.weight.";
  for (auto const& [rows, part, fits] :
       {std::tuple(12, "wv", true), std::tuple(4, "wv", false), std::tuple(12, "value", false)}) {
    StoredTable table = table_of({"model.norm.weight", before + "wq.weight", before + "wk.weight",
                                  before + part + ".weight", "optimizer.state.norm.weight.exp_avg",
                                  state + "step"});
    table.add_whole(state + "exp_avg", DType::f32, std::vector<Index>{rows, 2}, {0, 0, 96});
    NamedStates const found = named_states(table, "model.");
    Names expected{"model.norm.weight exp_avg"};
    if (fits) expected.push_back(before + "wqkv.weight exp_avg");
    EXPECT_EQ(states_of(found), expected) << rows << part;
    EXPECT_EQ(found.fault.empty(), fits) << found.fault;
    EXPECT_EQ(found.steps.size(), part == std::string("wv") ? 1U : 0U);
  }
}

TEST(NamedStates, OfNoWeightAreStrays) {
  NamedStates const found =
      named_states(table_of({"up.weight", "optim.state.down.weight.exp_avg"}), "");
  EXPECT_EQ(found.strays, std::vector<std::size_t>{1});
  EXPECT_NE(found.fault.find("no weight has the name"), std::string::npos) << found.fault;
  EXPECT_EQ(named_states(table_of({"up.weight", "down.weight"}), "").fault, "");
}

TEST(NamedStates, OfAnotherShapeOrTwiceAreStrays) {
  StoredTable table = table_of({"up.weight", "a.state.up.weight.exp_avg"});
  table.add_whole("a.state.up.weight.mu_product", DType::f32, {}, {0, 0, 4});
  EXPECT_NE(named_states(table, "").fault.find("is [], and its weight 'up.weight' is [4, 2]"),
            std::string::npos);
  NamedStates const twice = named_states(
      table_of({"up.weight", "a.state.up.weight.exp_avg", "b.state.up.weight.exp_avg"}), "");
  EXPECT_NE(twice.fault.find("are the same state of 'up.weight'"), std::string::npos);
}

TEST(NamedStates, SettingsAreThoseBesideThem) {
  StoredTable const table =
      table_of({"up.weight", "optim.state.up.weight.exp_avg", "optim.param_groups.up.weight.lr"});
  NamedStates const found = named_states(table, "");
  EXPECT_EQ(found.settings, std::vector<std::size_t>{2});
  EXPECT_TRUE(is_named_setting("optim.param_groups", found.places));
  EXPECT_TRUE(is_named_setting("optim.param_groups.0.lr", found.places));
  EXPECT_FALSE(is_named_setting("optim.param_groupsX", found.places));
  EXPECT_FALSE(is_named_setting("other.param_groups.0.lr", found.places));
}

}  // namespace
}  // namespace reshard::dcp
