#include "core/formats/torch_dist/state/numbered_states.hpp"

#include <gtest/gtest.h>

#include "tests/support/decay_groups.hpp"

namespace reshard::dcp {
namespace {

using Names = std::vector<std::string>;

/// A checkpoint of a plain optimizer with two groups, of which the first decays.
class TwoGroups {
 public:
  explicit TwoGroups(Names const& names) {
    for (std::string const& name : names) {
      tensors.push_back(checkpoint.stored.tensors.size());
      checkpoint.stored.add_whole(name, DType::f32, std::vector<Index>{4}, {0, 0, 16});
    }
    auto common = std::make_shared<CommonState>();
    pickle::Document& document = common->torch.document;
    pickle::NodeId const inner = document.add_dict();
    document.set(inner, "param_groups", test::add_decay_groups(document));
    pickle::NodeId const optimizer = document.add_dict();
    document.set(optimizer, "optimizer", inner);
    document.root = document.add_dict();
    document.set(document.root, "optimizer", optimizer);
    common->root = document.root;
    checkpoint.chunked.common = std::move(common);
  }

  bool add() { return add_numbered_states(checkpoint, tensors, view); }

  Checkpoint checkpoint;
  std::vector<std::size_t> tensors;
  StoredView view;
};

/// Of parameters 0 and 1, which are in a group each.
Names const all{"optimizer.fp32_from_fp16_params.0.0", "optimizer.fp32_from_fp16_params.1.0",
                "optimizer.optimizer.state.1.exp_avg", "optimizer.optimizer.state.0.exp_avg_sq",
                "optimizer.optimizer.state.0.exp_avg", "optimizer.optimizer.state.1.exp_avg_sq"};

TEST(NumberedStates, AreThoseOfTheMembersOfGroups) {
  TwoGroups given(all);
  ASSERT_TRUE(given.add());
  EXPECT_EQ(given.view.states, (Names{"fp32_param", "exp_avg", "exp_avg_sq"}));
  ASSERT_EQ(given.view.lists.size(), 1U);
  auto const& groups = given.view.lists.front().groups;
  ASSERT_EQ(groups.size(), 2U);
  using Members = std::vector<std::vector<std::size_t>>;
  EXPECT_TRUE(groups[0].decays && !groups[1].decays);
  EXPECT_EQ(groups[0].members, (Members{{0, 4, 3}}));
  EXPECT_EQ(groups[1].members, (Members{{1, 2, 5}}));
}

TEST(NumberedStates, ThatDoNotFitTheGroupsAreNone) {
  std::string const master = "optimizer.fp32_from_fp16_params.";
  std::string const state = "optimizer.optimizer.state.";
  for (std::string const& other :
       {master + "0.2", master + "2.0", state + "2.exp_avg", state + "0.step", state + "exp_avg",
        master + "0", master + "0.0", std::string("optimizer.state.0.exp_avg")}) {
    Names names = all;
    names.push_back(other);
    TwoGroups given(names);
    EXPECT_FALSE(given.add()) << other;
  }
  TwoGroups without_settings(all);
  without_settings.checkpoint.chunked.common = nullptr;
  EXPECT_FALSE(without_settings.add());
  EXPECT_TRUE(without_settings.view.states.empty() && without_settings.view.lists.empty());
}

}  // namespace
}  // namespace reshard::dcp
