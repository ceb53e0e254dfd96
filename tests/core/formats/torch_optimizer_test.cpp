#include "core/formats/run/torch_optimizer.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/expect_refused.hpp"

namespace reshard {
namespace {

using pickle::Document;
using pickle::NodeId;

/// A group of Adam as torch has it.
NodeId add_group(Document& document, double lr, double decay) {
  NodeId const group = document.add_dict();
  document.set(group, "lr", document.add_real(lr));
  document.set(group, "betas",
               document.add_tuple({document.add_real(0.9), document.add_real(0.95)}));
  document.set(group, "eps", document.add_real(1e-8));
  document.set(group, "weight_decay", document.add_real(decay));
  document.set(group, "amsgrad", document.add_bool(false));
  return group;
}

TorchOptimizer optimizer_of(Document& document, std::vector<NodeId> groups) {
  document.root = document.add_list(std::move(groups));
  TorchOptimizer result;
  result.settings = pickle::dump(document);
  result.steps = 7;
  return result;
}

std::string refusal(TorchOptimizer const& optimizer) {
  try {
    megatron_settings(optimizer, "/ckpt");
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    return error.sentence();
  }
  return "";
}

bool says(TorchOptimizer const& optimizer, std::string_view words) {
  std::string const said = refusal(optimizer);
  return said.find(words) != std::string::npos &&
         said.find("source.optimizer = \"drop\"") != std::string::npos;
}

TEST(TorchOptimizer, BecomesTheTwoGroupsOfAMegatronRun) {
  Document document;
  NodeId const plain = add_group(document, 0.01, 0);
  NodeId const decaying = add_group(document, 0.01, 0.1);
  Document const made = megatron_settings(optimizer_of(document, {plain, decaying}), "/ckpt");
  NodeId const inner = made.find(made.find(made.root, "optimizer"), "optimizer");
  auto const& groups = made.at(made.find(inner, "param_groups")).items;
  ASSERT_EQ(groups.size(), 2U);
  for (std::size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(made.at(made.find(groups[g], "wd_mult")).real, g == 0 ? 1 : 0);
    EXPECT_EQ(made.at(made.find(groups[g], "weight_decay")).real, g == 0 ? 0.1 : 0);
    EXPECT_EQ(made.at(made.find(groups[g], "lr")).real, 0.01);
    EXPECT_EQ(made.at(made.find(groups[g], "step")).integer, 7);
  }
}

TEST(TorchOptimizer, MustBeOneThatMegatronHas) {
  Document document;
  NodeId const one = add_group(document, 0.01, 0.1);
  EXPECT_EQ(refusal(optimizer_of(document, {one})), "");
  EXPECT_TRUE(says(optimizer_of(document, {one, add_group(document, 0.02, 0.1)}), "'lr' is"));
  EXPECT_TRUE(says(optimizer_of(document, {one, add_group(document, 0.01, 0.2)}), "weight decay"));
  NodeId const other = add_group(document, 0.01, 0.1);
  document.set(other, "amsgrad", document.add_bool(true));
  EXPECT_TRUE(says(optimizer_of(document, {one, other}), "'amsgrad' is true"));
  document.erase(other, "betas");
  EXPECT_TRUE(says(optimizer_of(document, {other}), "amsgrad"));
  document.erase(other, "amsgrad");
  EXPECT_TRUE(says(optimizer_of(document, {other}), "it is not Adam"));
}

TEST(TorchOptimizer, MustHaveTheSameBetasInAllGroups) {
  Document document;
  NodeId const one = add_group(document, 0.01, 0.1);
  NodeId const other = add_group(document, 0.01, 0.1);
  document.set(other, "betas",
               document.add_tuple({document.add_real(0.9), document.add_real(0.99)}));
  EXPECT_TRUE(says(optimizer_of(document, {one, other}), "have different 'betas'"));
}

TEST(TorchOptimizer, MustHaveSettingsThatArePlainValues) {
  Document document;
  NodeId const group = add_group(document, 0.01, 0.1);
  document.set(group, "lr", document.add_object("my.trainer", "Schedule", document.add_dict()));
  document.root = document.add_list({group});
  test::expect_refused(ErrorKind::source, "hold 'my.trainer.Schedule', which is not a plain value",
                       [&] { check_plain(document, "/ckpt"); });
}

TEST(TorchOptimizer, MustSayItsSettingsAndSteps) {
  Document document;
  TorchOptimizer optimizer = optimizer_of(document, {add_group(document, 0.01, 0.1)});
  optimizer.steps = std::nullopt;
  EXPECT_TRUE(says(optimizer, "does not state its step"));
  optimizer.fault = "two parameters disagree.";
  EXPECT_TRUE(says(optimizer, "two parameters disagree."));
  EXPECT_TRUE(says(TorchOptimizer(), "no param_groups"));
}

}  // namespace
}  // namespace reshard
