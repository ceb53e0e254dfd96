#include "core/mapping/maps/config_defaults.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

MapFile family() {
  return parse_map_file(R"toml(
facts = "text_config"
[defaults]
eps = "0.5"
window = "if(model_type == 'windowed', 4096, null)"
"rope.type" = "if(rope == null, 'yarn', null)"
"rope.factor" = "if(rope == null, 32.0, null)"
"rope.theta" = 7
)toml",
                        "family.toml");
}

std::string completed(std::string_view config) {
  return completed_config(family(), parse_json(config, "config.json")).dump();
}

TEST(CompletedConfig, SaysWhatIsLeftOut) {
  EXPECT_EQ(completed(R"({"rope": {"theta": 5}})"), R"({"rope": {"theta": 5}, "eps": 0.5})");
  EXPECT_EQ(completed(R"({"eps": 0.25, "model_type": "windowed", "rope": {}})"),
            R"({"eps": 0.25, "model_type": "windowed", "rope": {"theta": 7}, "window": 4096})");
}

TEST(CompletedConfig, NullIsThereAndANullObjectIsNot) {
  EXPECT_EQ(
      completed(R"({"eps": null, "model_type": "windowed", "window": null, "rope": null})"),
      R"({"eps": null, "model_type": "windowed", "window": null, "rope": {"type": "yarn", "factor": 32.0, "theta": 7}})");
}

TEST(CompletedConfig, WritesWhereTheFactsAre) {
  EXPECT_EQ(
      completed(
          R"({"model_type": "outer", "text_config": {"model_type": "windowed", "rope": {"theta": 1}}})"),
      R"({"model_type": "outer", "text_config": {"model_type": "windowed", "rope": {"theta": 1}, "eps": 0.5, "window": 4096}})");
}

TEST(ScopedFacts, OfADottedMemberTheInnermostComeFirst) {
  Json const config = parse_json(
      R"({"model_type": "outer", "tie": false, "thinker": {"tie": true, "text": {"model_type": "inner", "hidden": 8}}})",
      "config.json");
  Json const facts = scoped_facts(config, "thinker.text");
  EXPECT_EQ(fact(facts, "model_type").dump(), "\"inner\"");
  EXPECT_EQ(fact(facts, "hidden").dump(), "8");
  EXPECT_EQ(fact(facts, "tie").dump(), "true");
  EXPECT_EQ(fact(facts, "top.tie").dump(), "false");
  EXPECT_EQ(scoped_facts(config, "thinker.words").dump(), config.dump()) << "nothing is there";
}

TEST(CompletedConfig, WritesIntoADottedMember) {
  MapFile const map = parse_map_file("facts = 'a.b'\n[defaults]\neps = '0.5'\n", "map.toml");
  EXPECT_EQ(completed_config(map, parse_json(R"({"a": {"b": {"x": 1}}})", "config.json")).dump(),
            R"({"a": {"b": {"x": 1, "eps": 0.5}}})");
}

TEST(CompletedConfig, ADerivedMapChangesAndTakesAwayDefaults) {
  MapFile const derived = inherited(
      family(), parse_map_file("[defaults]\neps = \"0.125\"\nwindow = false\n", "derived.toml"));
  EXPECT_EQ(derived.defaults.front().expression.text(), "0.125");
  EXPECT_TRUE(derived.defaults[1].expression.empty()) << "load_map_file leaves it out";
}

}  // namespace
}  // namespace reshard
