#include "core/mapping/adapter_finder.hpp"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/expect_refused.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard::test {
namespace {

TEST(Adapter, EndsOfNamesMeanParametersAndTheirModules) {
  std::vector<std::string> const ends{"mlp.experts.down_proj"};
  EXPECT_TRUE(means_parameter(ends, "model.layers.3.mlp.experts.down_proj"));
  EXPECT_TRUE(means_parameter(ends, "mlp.experts.down_proj"));
  EXPECT_FALSE(means_parameter(ends, "model.layers.3.xmlp.experts.down_proj"));
  EXPECT_FALSE(means_parameter(ends, "model.layers.3.mlp.experts.gate_up_proj"));
  EXPECT_TRUE(means_module_of(ends, "model.layers.3.mlp.experts.gate_up_proj"));
  EXPECT_TRUE(means_module_of(ends, "*model.*layers.*.mlp.experts.gate_up_proj"));
  EXPECT_FALSE(means_module_of(ends, "model.layers.3.mlp.experts.0.gate_proj.weight"));
  EXPECT_FALSE(means_module_of(ends, "model.layers.3.mlp.gate.bias"));
  EXPECT_FALSE(means_module_of({}, "model.layers.3.mlp.experts.gate_up_proj"));
}

TEST(Adapter, AGateOfOneRowIsALinearLayer) {
  LinearAxes const axes{.out = {}, .in = {"hidden"}};
  auto const gate = linear_roles(parse_layout("shared.switch: 1 hidden"), axes);
  ASSERT_TRUE(gate);
  EXPECT_EQ(gate->dims.out, 0U);
  EXPECT_EQ(gate->dims.in, 1U);
  EXPECT_TRUE(gate->further.empty());
  auto const turned = linear_roles(parse_layout("shared.switch: hidden 1"), axes);
  ASSERT_TRUE(turned);
  EXPECT_EQ(turned->dims.out, 1U);
  EXPECT_FALSE(linear_roles(parse_layout("shared.switch: 1 1 hidden"), axes));
  EXPECT_FALSE(linear_roles(parse_layout("w: 1 hidden"), {.out = {"inter"}, .in = {"hidden"}}));
}

/// The family's side of a small Qwen3 with experts, all of them in one parameter.
struct Experts {
  Experts() : family(map_file("qwen3_moe")), core(map_file("mcore")), model(family, core, facts()) {
    model.set_adapter_forms(core.adapters);
    SideOptions options;
    options.has = [](std::string_view) { return true; };
    side.emplace(model, family, std::move(options));
  }

  static ModelFacts facts() {
    for (SampleModel& sample : sample_models())
      if (sample.family == "qwen3_moe") return {sample.config, "config.json", 0};
    return {};
  }

  Index size(char const* axis) const {
    return model.axes()[static_cast<AxisId>(model.axes().find(axis))].size;
  }

  /// What is found where layer 1 has one pair of B [out, rank · expert] in its experts.
  std::vector<AdapterPair> look(std::vector<std::string> packed) const {
    auto const linear = linear_weights(core);
    AdapterFinder finder(model, *side, linear, {"peft", false, std::move(packed)});
    auto const find = [&](std::string const& name) -> std::optional<FoundTensor> {
      if (!name.starts_with("base_model.model.model.layers.1.mlp.experts.lora_"))
        return std::nullopt;
      return FoundTensor{DType::f32, {size("hidden"), 3 * size("expert")}};
    };
    return finder.look(side->names(nullptr), find, "here");
  }

  MapFile family, core;
  Model model;
  std::optional<Side> side;
};

TEST(AdapterFinder, APairOfAModuleIsThatOfTheParameterThatIsAdapted) {
  Experts const experts;
  for (std::string const word : {"gate_up_proj", "down_proj"}) {
    auto const pairs = experts.look({"mlp.experts." + word});
    ASSERT_EQ(pairs.size(), 1U) << word;
    EXPECT_EQ(pairs[0].module, "model.layers.1.mlp.experts." + word);
    EXPECT_EQ(pairs[0].a, "base_model.model.model.layers.1.mlp.experts.lora_A.weight");
    EXPECT_EQ(pairs[0].rank, 3);
  }
  // The wrapper of the earlier word is outside, and no other one is stored here.
  auto const both = experts.look({"mlp.experts.gate_up_proj", "mlp.experts.down_proj"});
  ASSERT_EQ(both.size(), 1U);
  EXPECT_EQ(both[0].module, "model.layers.1.mlp.experts.down_proj");
  EXPECT_EQ(experts.look({"experts.gate_up_proj", "mlp.experts.gate_up_proj"}).size(), 1U)
      << "two ends of one name";
  EXPECT_TRUE(experts.look({}).empty());
}

TEST(AdapterFinder, AdaptersOfAnotherShapeOrOfSeveralRanksAreRefused) {
  Experts const experts;
  SideOptions apart;  // a file has each expert for itself
  apart.has = [](std::string_view name) {
    return name.find("experts.") == std::string_view::npos ||
           name.find("experts.0.") != std::string_view::npos;
  };
  Side const side(experts.model, experts.family, std::move(apart));
  auto const linear = linear_weights(experts.core);
  auto const look = [&](std::map<std::string, std::vector<Index>> const& shapes) {
    AdapterFinder finder(experts.model, side, linear, {"peft", false, {}});
    finder.look(
        side.names(nullptr),
        [&](std::string const& name) -> std::optional<FoundTensor> {
          auto const found = shapes.find(name);
          if (found == shapes.end()) return std::nullopt;
          return FoundTensor{DType::f32, found->second};
        },
        "here");
  };
  auto const matrix = [](int expert, char const* letter) {
    return fmt::format("base_model.model.model.layers.1.mlp.experts.{}.up_proj.lora_{}.weight",
                       expert, letter);
  };
  expect_refused(ErrorKind::source, "is [8], expected a matrix whose last dimension is the rank",
                 [&] {
                   look({{"base_model.model.model.layers.1.mlp.gate.lora_A.weight", {2, 32}},
                         {"base_model.model.model.layers.1.mlp.gate.lora_B.weight", {8}}});
                 });
  expect_refused(ErrorKind::source, "of the same weight and layer rank 2", [&] {
    look({{matrix(0, "A"), {2, 32}},
          {matrix(0, "B"), {16, 2}},
          {matrix(1, "A"), {4, 32}},
          {matrix(1, "B"), {16, 4}}});
  });
}

TEST(AdapterFinder, RoutersHaveAdaptersInMegatronsFormsToo) {
  for (char const* form : {"bridge", "mcore_bridge"}) {
    Experts experts;
    auto const linear = linear_weights(experts.core);
    AdapterFinder finder(experts.model, *experts.side, linear, {"peft", false, {}});
    finder.look(
        experts.side->names(nullptr),
        [&](std::string const& name) -> std::optional<FoundTensor> {
          if (name.find("mlp.gate.lora_A") != std::string::npos)
            return FoundTensor{DType::f32, {2, experts.size("hidden")}};
          if (name.find("mlp.gate.lora_B") != std::string::npos)
            return FoundTensor{DType::f32, {experts.size("expert"), 2}};
          return std::nullopt;
        },
        "here");
    finder.apply(experts.model);
    SideOptions options;
    options.local = true;
    options.mesh = MeshSizes{.tp = 2, .ep = 2};
    options.options = {{"form", "grouped"}, {"spec", "te"}};
    options.adapter = form;
    Side const target(experts.model, experts.core, std::move(options));
    PipelineChunk const chunk{0, 0, {{0, 2, false}}, {}, true, true};
    std::map<std::string, std::vector<Index>> shapes;
    for (StoredName const& name : target.names(&chunk))
      shapes[name.name] =
          target.layout(name.entry, {MeshSizes{.tp = 2, .ep = 2}.places()[0], &chunk}).file_shape;
    bool const bridge = form == std::string("bridge");
    std::string const router = "decoder.layers.1.mlp.router.";
    Index const parts = bridge ? 2 : 1;  // Megatron-Bridge cuts the rows of both by tp
    EXPECT_EQ(shapes[router + (bridge ? "adapter.linear_in.weight" : "lora_A.default.weight")],
              (std::vector<Index>{2 / parts, experts.size("hidden")}));
    EXPECT_EQ(shapes[router + (bridge ? "adapter.linear_out.weight" : "lora_B.default.weight")],
              (std::vector<Index>{experts.size("expert") / parts, 2}));
    EXPECT_EQ(shapes.size(), 4U) << "of two layers";
  }
}

}  // namespace
}  // namespace reshard::test
