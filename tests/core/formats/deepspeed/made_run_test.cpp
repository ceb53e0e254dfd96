#include "core/formats/deepspeed/made_run.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/expect_refused.hpp"

namespace reshard::deepspeed {
namespace {

using pickle::Document;
using pickle::NodeId;
using Lines = std::vector<std::string>;

NodeId add_group(Document& document, double lr, double decay) {
  NodeId const group = document.add_dict();
  document.set(group, "lr", document.add_real(lr));
  document.set(group, "betas",
               document.add_tuple({document.add_real(0.9), document.add_real(0.95)}));
  document.set(group, "weight_decay", document.add_real(decay));
  document.set(group, "fused", document.add_bool(true));
  return group;
}

TorchOptimizer optimizer_of(std::vector<std::pair<double, double>> const& groups) {
  Document document;
  std::vector<NodeId> nodes;
  for (auto const& [lr, decay] : groups) nodes.push_back(add_group(document, lr, decay));
  document.root = document.add_list(nodes);
  TorchOptimizer result;
  result.settings = pickle::dump(document);
  result.steps = 7;
  return result;
}

std::vector<UniversalTensor> two_parameters() {
  return {{"a", "", "a", DType::bf16, {2}},
          {"a", "fp32", "a (param)", DType::f32, {2}},
          {"b", "", "b", DType::bf16, {3}},
          {"b", "fp32", "b (param)", DType::f32, {3}}};
}

/// The keys of each group.
std::vector<Lines> keys_of(UniversalRun const& run) {
  std::vector<Lines> result;
  for (NodeId const group : run.groups.at(run.groups.root).items) {
    result.emplace_back();
    for (auto const& [key, value] : run.groups.members(group)) result.back().push_back(key);
  }
  return result;
}

TEST(MadeRun, HasAGroupForEachParameterWithWhatTheGroupsHaveInCommon) {
  UniversalRun run;
  Lines warnings;
  set_common_settings(run, optimizer_of({{0.5, 0.1}, {0.5, 0.1}}), two_parameters(), "/c",
                      warnings);
  Lines const all = {"lr", "betas", "weight_decay"};
  EXPECT_EQ(keys_of(run), (std::vector<Lines>{all, all}));
  EXPECT_EQ(warnings, Lines{});
  EXPECT_EQ(run.steps, 7);
  EXPECT_FALSE(run.weights_alone);
}

TEST(MadeRun, NamesWhatTheGroupsDoNotHaveInCommon) {
  UniversalRun run;
  Lines warnings;
  set_common_settings(run, optimizer_of({{0.5, 0.1}, {0.25, 0}}), two_parameters(), "/c", warnings);
  EXPECT_EQ(keys_of(run), (std::vector<Lines>{{"betas"}, {"betas"}}));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings.front().find("differ in lr, weight_decay"), std::string::npos);
}

TEST(MadeRun, OfWeightsAloneHasGroupsWithoutSettingsAtStepZero) {
  UniversalRun run;
  set_fresh(run, two_parameters());
  EXPECT_EQ(keys_of(run), std::vector<Lines>(2));
  EXPECT_EQ(run.steps, 0);
  EXPECT_TRUE(run.weights_alone);
}

TEST(MadeRun, NeedsSettingsAndSteps) {
  UniversalRun run;
  Lines warnings;
  test::expect_refused(ErrorKind::source, "no settings of an optimizer", [&] {
    set_common_settings(run, TorchOptimizer(), two_parameters(), "/c", warnings);
  });
  TorchOptimizer optimizer = optimizer_of({{0.5, 0.1}});
  optimizer.steps.reset();
  test::expect_refused(ErrorKind::source, "does not state its step", [&] {
    set_common_settings(run, optimizer, two_parameters(), "/c", warnings);
  });
}

TEST(MadeRun, StatesTheShapesOfParametersAndThePlaceInTheSchedule) {
  UniversalRun run;
  run.iteration = 5;
  set_made_states(run, two_parameters(), 40);
  Document states;
  states.root = states.add_dict();
  run.add_states(states);
  auto const integer = [&](NodeId dict, char const* key) {
    return states.at(states.find(dict, key)).integer;
  };
  EXPECT_EQ(integer(states.root, "global_steps"), 5);
  EXPECT_EQ(integer(states.root, "global_samples"), 40);
  NodeId const schedule = states.find(states.root, "lr_scheduler");
  EXPECT_EQ(integer(schedule, "last_batch_iteration"), 4);
  EXPECT_EQ(integer(schedule, "last_epoch"), 5);
  NodeId const shapes = states.at(states.find(states.root, "param_shapes")).items.at(0);
  ASSERT_EQ(states.members(shapes).size(), 2U);
  EXPECT_EQ(states.at(states.at(states.find(shapes, "b")).items.at(0)).integer, 3);
}

}  // namespace
}  // namespace reshard::deepspeed
