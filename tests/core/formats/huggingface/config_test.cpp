#include <random>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/formats/huggingface/config/config.hpp"

namespace reshard::huggingface {
namespace {

constexpr std::string_view config = R"({
  "architectures": [
    "LlamaForCausalLM"
  ],
  "auto_map": {"AutoConfig": "configuration_x.XConfig"},
  "rms_norm_eps": 1e-05,
  "rope": {
    "factor": 1.0,
    "type": "}, \"x\": {"
  },
  "time_step_limit": [0.0, Infinity],
  "torch_dtype": "bfloat16",
  "vocab_size": 32000
}
)";

struct Case {
  std::string what;
  std::string before;
  std::vector<ConfigPatch> patches;
  std::string after;
};

std::string replaced(std::string_view from, std::string_view to) {
  std::string text(config);
  auto const at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::vector<Case> cases() {
  return {
      {"no patch", std::string(config), {}, std::string(config)},
      {"the value it has",
       std::string(config),
       {{{"torch_dtype"}, Json("bfloat16")}, {{"rope", "factor"}, Json(1.0)}},
       std::string(config)},
      {"remove what is not there",
       std::string(config),
       {{{"quantization_config"}, std::nullopt},
        {{"a", "b"}, std::nullopt},
        {{"vocab_size", "b"}, std::nullopt}},
       std::string(config)},
      {"replace a scalar",
       std::string(config),
       {{{"torch_dtype"}, Json("float32")}},
       replaced(R"("bfloat16")", R"("float32")")},
      {"replace the last",
       std::string(config),
       {{{"vocab_size"}, Json(5)}},
       replaced("32000", "5")},
      {"replace inside",
       std::string(config),
       {{{"rope", "factor"}, Json(2.5)}},
       replaced("1.0", "2.5")},
      {"replace an array by an object",
       std::string(config),
       {{{"architectures"}, Json(Json::Object{{"a", Json(1)}})}},
       replaced("[\n    \"LlamaForCausalLM\"\n  ]", "{\n    \"a\": 1\n  }")},
      {"remove the first",
       std::string(config),
       {{{"architectures"}, std::nullopt}},
       replaced("\"architectures\": [\n    \"LlamaForCausalLM\"\n  ],\n  ", "")},
      {"remove one in the middle",
       std::string(config),
       {{{"auto_map"}, std::nullopt}},
       replaced(",\n  \"auto_map\": {\"AutoConfig\": \"configuration_x.XConfig\"}", "")},
      {"remove the last",
       std::string(config),
       {{{"vocab_size"}, std::nullopt}},
       replaced(",\n  \"vocab_size\": 32000", "")},
      {"add",
       std::string(config),
       {{{"quantization_config"}, Json(Json::Object{{"bits", Json(8)}})}},
       replaced("32000", "32000,\n  \"quantization_config\": {\n    \"bits\": 8\n  }")},
      {"add inside",
       std::string(config),
       {{{"rope", "extra"}, Json(true)}},
       replaced("{\"\n  }", "{\",\n    \"extra\": true\n  }")},
      {"add with its surroundings",
       R"({"a": 1})",
       {{{"b", "c"}, Json(2)}},
       R"({"a": 1, "b": {"c": 2}})"},
      {"one line stays one line",
       R"({"a": 1, "b": 2})",
       {{{"c"}, Json(Json::Object{{"d", Json(3)}})}},
       R"({"a": 1, "b": 2, "c": {"d": 3}})"},
      {"the only member", R"({"a": 1})", {{{"a"}, std::nullopt}}, "{}"},
      {"into an empty object", "{}\n", {{{"a"}, Json(1)}}, "{\n  \"a\": 1\n}\n"},
      {"into no file", "", {{{"a"}, Json(1)}}, "{\n  \"a\": 1\n}\n"},
      {"no file, nothing set", "", {{{"a"}, std::nullopt}}, ""},
      {"an escaped key", R"({"\u0061": 1})", {{{"a"}, Json(2)}}, R"({"\u0061": 2})"},
      {"a scalar in the way", R"({"a": 1})", {{{"a", "b"}, Json(2)}}, R"({"a": {"b": 2}})"},
      {"null in place of a value", R"({"a": 1})", {{{"a"}, Json(nullptr)}}, R"({"a": null})"},
  };
}

TEST(HuggingFaceConfig, OnlyThePatchedMembersChangeTheirBytes) {
  for (Case const& each : cases())
    EXPECT_EQ(patched_config_text(each.before, each.patches, "config.json"), each.after)
        << each.what;
}

TEST(HuggingFaceConfig, TheTextAndTheValueAgree) {
  for (Case const& each : cases()) {
    if (each.before.empty()) continue;
    Json const expected = patched_config(parse_config(each.before, "before"), each.patches);
    Json const found =
        parse_config(patched_config_text(each.before, each.patches, "config.json"), "after");
    EXPECT_EQ(found, expected) << each.what << "\n" << found.dump() << "\n" << expected.dump();
  }
}

Json random_value(std::mt19937& random, int depth) {
  switch (random() % (depth > 0 ? 6 : 4)) {
    case 0: return Json(static_cast<int>(random() % 5));
    case 1: return Json(random() % 2 == 0);
    case 2: return Json(random() % 2 == 0 ? "a,b}]{[\"\\" : "é");
    case 3: return {};
    case 4: {
      Json list = Json::array();
      for (auto n = random() % 3; n > 0; --n) list.push(random_value(random, depth - 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (auto n = random() % 4; n > 0; --n)
        object.set(fmt::format("k{}", random() % 4), random_value(random, depth - 1));
      return object;
    }
  }
}

TEST(HuggingFaceConfig, RandomPatchesOfTheTextAndOfTheValueAgree) {
  std::mt19937 random(77);
  for (int round = 0; round < 3000; ++round) {
    Json before = Json::object();
    for (auto n = random() % 4; n > 0; --n)
      before.set(fmt::format("k{}", random() % 4), random_value(random, 3));
    std::vector<ConfigPatch> patches;
    for (auto n = random() % 4; n > 0; --n) {
      ConfigPatch patch{{fmt::format("k{}", random() % 4)}, std::nullopt};
      if (random() % 2 == 0) patch.path.push_back(fmt::format("k{}", random() % 4));
      if (random() % 3 != 0) patch.value = random_value(random, 2);
      patches.push_back(patch);
    }
    std::string const text = before.dump(round % 2 == 0 ? 2 : 0);
    std::string const after = patched_config_text(text, patches, "config.json");
    EXPECT_EQ(parse_config(after, "after"), patched_config(before, patches)) << text << "\n"
                                                                             << after;
    if (HasFailure()) return;
  }
}

TEST(HuggingFaceConfig, PythonsNumbersReadAsNullOutsideStringsOnly) {
  EXPECT_EQ(
      parse_config(R"({"a": NaN, "b": [Infinity, -Infinity], "c": "NaN \" Infinity"})", "x").dump(),
      R"({"a": {"__float__": "NaN"}, "b": [{"__float__": "Infinity"}, {"__float__": "-Infinity"}], "c": "NaN \" Infinity"})");
  EXPECT_THROW(parse_config(R"({"a": Infinityx})", "x"), Error);
  EXPECT_THROW(parse_config(R"({"a": 1Infinity})", "x"), Error);
  EXPECT_THROW(parse_config("[]", "x"), Error);
  EXPECT_THROW(parse_config("{\"a\": \"\\", "x"), Error);
}

TEST(HuggingFaceConfig, EveryTruncationIsRefused) {
  std::string const text(config);
  for (std::size_t bytes = 1; bytes + 2 < text.size(); ++bytes)
    EXPECT_THROW(
        patched_config_text(text.substr(0, bytes), std::vector<ConfigPatch>{{{"a"}, Json(1)}}, "x"),
        Error)
        << bytes;
}

}  // namespace
}  // namespace reshard::huggingface
