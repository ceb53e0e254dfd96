#include "core/base/text/yaml.hpp"
#include "core/base/text/yaml_text.hpp"

#include <string>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace reshard {
namespace {

std::string refusal(std::string const& text) {
  try {
    return "read as " + parse_yaml(text, "run.yaml").dump();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    return error.sentence();
  }
}

std::string read(std::string const& text) { return parse_yaml(text, "run.yaml").dump(); }

void expect_refused(std::string const& text, std::string const& why) {
  std::string const sentence = refusal(text);
  EXPECT_TRUE(sentence.starts_with("run.yaml:")) << sentence;
  EXPECT_NE(sentence.find(why), std::string::npos) << sentence;
}

// As yaml.safe_load of PyYAML reads them.
TEST(Yaml, PlainScalarsAreNumbersFlagsAndTexts) {
  EXPECT_EQ(read("[1, -2, +3, 0, 9223372036854775807]"), "[1, -2, 3, 0, 9223372036854775807]");
  EXPECT_EQ(read("[1.0e-05, .5, 1., -1.5, 1.0e+16]"), "[1e-05, 0.5, 1.0, -1.5, 1e+16]");
  EXPECT_EQ(read("[true, No, on, OFF, y]"), R"([true, false, true, false, "y"])");
  EXPECT_EQ(read("[null, ~, Null]"), "[null, null, null]");
  EXPECT_EQ(read("a:\nb: 1"), R"({"a": null, "b": 1})");
  EXPECT_EQ(read("[1e-05, 1e5, a1, 1.2.3, -a, ., 9223372036854775808]"),
            R"(["1e-05", "1e5", "a1", "1.2.3", "-a", ".", "9223372036854775808"])");
}

// What yaml.safe_load of PyYAML 6.0 makes of each.
TEST(Yaml, NumbersHaveTheFormsOfYaml11) {
  for (auto const& [text, value] : {
           std::pair("10_000", "10000"),
           {"1__0", "10"},
           {"16_", "16"},
           {"-1_0", "-10"},
           {"0x2", "2"},
           {"+0x1_0", "16"},
           {"0xFf", "255"},
           {"0b11", "3"},
           {"010", "8"},
           {"02", "2"},
           {"00", "0"},
           {"0_", "0"},
           {"2:46:40", "10000"},
           {"-2:46:40", "-10000"},
           {"1:5:07", "3907"},
           {"1_6.0", "16.0"},
           {".5_", "0.5"},
           {"1_.", "1.0"},
           {"685.230_15e+03", "685230.15"},
           {"190:20:30.15", "685230.15"},
           {"-1.5", "-1.5"},
       })
    EXPECT_EQ(read(text), value) << text;
  for (char const* text : {"0X2",
                           "08",
                           "0o7",
                           "_16",
                           "1.5e3",
                           "1e+4",
                           "12e03",
                           "+.5",
                           "-.5",
                           "._5",
                           "-.nan",
                           "1:60",
                           "0:30",
                           "0xg",
                           "0b2",
                           "0x_",
                           "1:2:3e+1",
                           ":1",
                           "0x",
                           "1.2:3",
                           "1:2.5e+1",
                           "100000000000000000000:1",
                           "9_223372036854775808"})
    EXPECT_EQ(read("a: '" + std::string(text) + "'"), read("a: " + std::string(text))) << text;
}

TEST(Yaml, AMergeKeyTakesOverWhatIsNotThere) {
  EXPECT_EQ(read("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}"),
            R"({"a": {"x": 1, "y": 2}, "b": {"y": 3, "x": 1}})");
  EXPECT_EQ(read("{<<: [{x: 1}, {x: 2, y: 3}], z: 0}"), R"({"z": 0, "x": 1, "y": 3})");
  EXPECT_EQ(read("{'<<': {x: 1}}"), R"({"<<": {"x": 1}})");
  expect_refused("{<<: 1}", "the key << takes over the members of mappings");
  expect_refused("{<<: [[1]]}", "the key << takes over the members of mappings");
  expect_refused("{<<: {x: 1}, <<: {y: 1}}", R"(the key "<<" appears twice)");
}

TEST(Yaml, AByteOrderMarkIsSkipped) {
  EXPECT_EQ(read("\xef\xbb\xbf"
                 "a: 1"),
            R"({"a": 1})");
}

TEST(Yaml, NumbersThatJsonLacksAreNumbers) {
  Json const all = parse_yaml("[.inf, -.Inf, .nan, .NaN, nan]", "test");
  ASSERT_EQ(all.items()->size(), 5U);
  EXPECT_EQ(*(*all.items())[0].real(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(*(*all.items())[1].real(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(*(*all.items())[2].real()));
  EXPECT_TRUE(std::isnan(*(*all.items())[3].real()));
  EXPECT_NE((*all.items())[4].text(), nullptr);
}

TEST(Yaml, QuotedAndTaggedTextsStayTexts) {
  EXPECT_EQ(read(R"(['1', "true", !!str 2, ! 3])"), R"(["1", "true", "2", "3"])");
  EXPECT_EQ(read("!!int '7'"), "7");
  EXPECT_EQ(read("a: |\n  two\n  lines\n"), R"({"a": "two\nlines\n"})");
}

TEST(Yaml, TagsOfOtherProgramsAreNotFollowed) {
  EXPECT_EQ(read("a: !!python/object/apply:os.system ['true']\nb: 1"), R"({"a": null, "b": 1})");
  EXPECT_EQ(read("a: !!python/name:torch.bfloat16 ''\nb: !mine {x: 1}"),
            R"({"a": null, "b": null})");
  EXPECT_EQ(read("!!python/tuple [1, 2]"), "[1, 2]");
}

TEST(Yaml, AnAliasIsACopy) {
  EXPECT_EQ(read("a: &id001\n- 1\n- 2\nb: *id001\nc: &x text\nd: *x"),
            R"({"a": [1, 2], "b": [1, 2], "c": "text", "d": "text"})");
  expect_refused("b: *none", "has no anchor");
  expect_refused("a: &a [1, *a]", "inside its own anchor");
}

TEST(Yaml, CopiesAreBounded) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    std::string const before = std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k == 0 ? "*a" : ", *a") + before;
    bomb += "]\n";
  }
  expect_refused(bomb, "more than 200000 values");
}

TEST(Yaml, NestingIsBounded) {
  EXPECT_EQ(read(std::string(64, '[') + std::string(64, ']')).size(), 128U);
  expect_refused(std::string(66, '[') + std::string(66, ']'), "nested deeper than 64 levels");
  expect_refused(std::string(100'000, '['), "nested deeper than 64 levels");
}

TEST(Yaml, WhatIsNoSettingsFileIsRefusedWithItsLine) {
  expect_refused("a: 1\nb: [1, 2\n", "run.yaml:3: ");
  expect_refused("a: 1\na: 2\n", R"(the key "a" appears twice)");
  expect_refused("a: 1\n---\nb: 2\n", "a second document begins");
  expect_refused("? [1]\n: 2\n", "a key that is not a string");
  expect_refused("a: \xff\xfe", "not YAML");
  EXPECT_NE(refusal(std::string(largest_yaml_bytes + 1, ' ')).find("4000001 bytes"),
            std::string::npos);
}

TEST(Yaml, AnEmptyDocumentIsNull) {
  EXPECT_EQ(read(""), "null");
  EXPECT_EQ(read("# nothing\n"), "null");
}

TEST(Yaml, WhatPyYamlDumpsOfAProvider) {
  Json const config = parse_yaml(
      "model:\n"
      "  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider\n"
      "  activation_func:\n"
      "    _call_: false\n"
      "    _target_: torch.nn.functional.silu\n"
      "  cp_comm_type: null\n"
      "  layernorm_epsilon: 1.0e-06\n"
      "  moe_layer_freq:\n"
      "  - 0\n"
      "  - 1\n"
      "  num_layers: 2\n",
      "run_config.yaml");
  Json const* model = config.find("model");
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(*model->find("num_layers")->integer(), 2);
  EXPECT_EQ(*model->find("layernorm_epsilon")->real(), 1e-6);
  EXPECT_EQ(model->find("moe_layer_freq")->items()->size(), 2U);
  EXPECT_EQ(*model->find("activation_func")->find("_target_")->text(), "torch.nn.functional.silu");
}

/// What yaml_text() writes is read back as the same value, and by people as these lines.
TEST(Yaml, AValueThatIsWrittenIsReadBack) {
  Json const value = Json::object()
                         .set("model", Json::object()
                                           .set("_target_", "a.B")
                                           .set("epsilon", 1e-6)
                                           .set("large", 1e20)
                                           .set("whole", 3.0)
                                           .set("count", -7)
                                           .set("flag", true)
                                           .set("nothing", Json()))
                         .set("list", Json(Json::Array{1, Json(Json::Array{}), Json::object()}))
                         .set("nested", Json(Json::Array{Json::object().set("a", 1)}))
                         .set("yes", "yes")
                         .set("1:30", "1:30\n\"x\"")
                         .set("Key", "");
  std::string const text = yaml_text(value);
  EXPECT_EQ(parse_yaml(text, "text"), value) << text;
  EXPECT_TRUE(
      text.starts_with("model:\n  _target_: \"a.B\"\n  epsilon: 1.0e-06\n"
                       "  large: 1.0e+20\n  whole: 3.0\n  count: -7\n"))
      << text;
  EXPECT_NE(text.find("\"yes\": \"yes\"\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace reshard
