// Parts of quantised weights in a model, axes that are facts alone, and what stored values have
// over logical ones.
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/mapping/sides/side.hpp"

namespace reshard {
namespace {

MapFile map_of(std::string const& rest = "") {
  return parse_map_file(
      "let = { L = 3 }\naxes = { hidden = 64, inter = 32, layer = 3, depth = 2, unused = 7, group = 4, dim = 8 }\n[sets.layer]\nodd = 'layer % 2'\n"
      "[tensors]\n'' = ['head: inter hidden']\nlayer = ['w: inter hidden', 'norm: hidden', 'o: hidden group dim']\n'layer.odd' = ['x: inter "
      "hidden']\n"
      "depth = ['e: inter hidden']\n" +
          rest,
      "m.toml");
}

struct Sample {
  explicit Sample(std::string const& rest = "")
      : map(map_of(rest)), model(map, map, {Json::object(), "facts", 0}) {}

  LogicalTensor const& tensor(std::string const& name) const {
    return model.tensor(model.find_tensor(name).value());
  }
  std::vector<Index> layers(std::string const& name) const {
    std::vector<Index> result;
    std::vector<DomainAxis> const domain = model.domain(tensor(name));
    for (Run const& run : domain.front().runs)
      for (Index i = run.begin; i < run.end; ++i) result.push_back(i);
    return result;
  }
  std::vector<LogicalAxis> axes_of_part(std::string const& weight, std::string const& layout,
                                        std::string const& part) const {
    return part_axes(tensor(weight), model.axes(), parse_layout(layout), parse_layout(part),
                     weight + ".s");
  }
  std::string shown(std::vector<LogicalAxis> const& axes) const {
    std::string text;
    for (LogicalAxis const& axis : axes) {
      text += (text.empty() ? "" : " ") +
              (axis.set.empty() ? model.axes()[axis.axis].name : axis.set.text());
      if (axis.div > 1) text += fmt::format("/{}", axis.div);
    }
    return text;
  }

  MapFile map;
  Model model;
};

TEST(PartAxes, AreTheWeightsInBlocks) {
  Sample const s;
  EXPECT_EQ(s.shown(s.axes_of_part("w", "w: inter hidden", "w.s: inter/16 hidden/32")),
            "layer inter/16 hidden/32");
  EXPECT_EQ(s.shown(s.axes_of_part("w", "w: inter hidden", "w.s: inter hidden/32 hidden%32/2")),
            "layer inter hidden/2");
  EXPECT_EQ(s.shown(s.axes_of_part("w", "w: inter hidden", "w.s: inter 1")), "layer inter");
  EXPECT_EQ(s.shown(s.axes_of_part("w", "w: inter hidden", "w.s:")), "layer");
  EXPECT_EQ(s.shown(s.axes_of_part("w", "w: inter hidden", "w.s: dim")),
            "layer dim");  // an axis of its own comes last
  EXPECT_EQ(s.shown(s.axes_of_part("o", "o: hidden (group dim)", "o.s: hidden group/2")),
            "layer hidden group/2");
  EXPECT_EQ(s.shown(s.axes_of_part("x", "x: inter hidden", "x.s: inter/16 hidden")),
            "layer.odd inter/16 hidden");
}

TEST(ModelParts, AreOfTheLayersThatHaveThem) {
  Sample s;
  TensorId const weight = s.model.find_tensor("w").value();
  EXPECT_FALSE(s.model.quantised(weight));
  s.model.add_part(weight, "w.s", s.axes_of_part("w", "w: inter hidden", "w.s: inter/16 hidden/16"),
                   {false, true});
  s.model.limit(weight, {true, false, true});
  EXPECT_TRUE(s.model.quantised(weight));
  EXPECT_EQ(s.layers("w.s"), (std::vector<Index>{1}));
  EXPECT_EQ(s.layers("w"), (std::vector<Index>{0, 2}));
  EXPECT_EQ(s.model.volume(s.tensor("w.s")), 2 * 4);
  EXPECT_EQ(s.model.volume(s.tensor("w")), 2 * 32 * 64);
  // The layers of other tensors are their own.
  EXPECT_EQ(s.layers("norm"), (std::vector<Index>{0, 1, 2}));
}

TEST(ModelParts, AreInTheSetOfTheirWeight) {
  Sample s;
  TensorId const weight = s.model.find_tensor("x").value();
  TensorId const part = s.model.add_part(weight, "x.s", s.tensor("x").axes, {true, true, true});
  EXPECT_EQ(s.layers("x.s"), (std::vector<Index>{1}));
  s.model.limit(weight, {true, false, true});
  EXPECT_FALSE(s.model.exists(weight));
  EXPECT_TRUE(s.model.exists(part));
}

TEST(ModelParts, WithoutLayersExistOrNot) {
  Sample s;
  TensorId const weight = s.model.find_tensor("head").value();
  EXPECT_FALSE(s.model.layer_axis(weight));
  TensorId const part = s.model.add_part(weight, "head.s", s.tensor("head").axes, {true});
  EXPECT_TRUE(s.model.exists(part));
  s.model.limit(weight, {true});
  EXPECT_TRUE(s.model.exists(weight));
  s.model.limit(weight, {});
  EXPECT_FALSE(s.model.exists(weight));
}

TEST(ModelParts, OfPredictionTensorsAreByDepth) {
  Sample s;
  TensorId const weight = s.model.find_tensor("e").value();
  ASSERT_TRUE(s.model.layer_axis(weight));
  s.model.limit(weight, {false, true});
  EXPECT_EQ(s.layers("e"), (std::vector<Index>{1}));
}

TEST(ModelParts, VectorsHaveAnAxisForTheirLength) {
  Sample s;
  QuantScheme scheme{"a",
                     {},
                     {},
                     {{"values", "weight", {DType::u8}, {}, {}, 0, false},
                      {"shape", "weight_shape", {DType::i64}, {}, {}, 2, false}}};
  s.model.set_schemes({scheme, scheme});
  int const axis = s.model.axes().find("numbers2");
  ASSERT_GE(axis, 0);
  EXPECT_EQ(s.model.axes()[static_cast<AxisId>(axis)].size, 2);
  EXPECT_EQ(part_tensor("attn.q", scheme, scheme.parts[1]), "attn.q.a.shape");
}

TEST(ModelFactsAlone, AreAxesOfNoDeclaredTensor) {
  Sample const s;
  EXPECT_TRUE(s.model.fact_alone("unused"));
  for (char const* axis : {"hidden", "layer", "group", "dim", "depth"})
    EXPECT_FALSE(s.model.fact_alone(axis)) << axis;
  EXPECT_FALSE(s.model.fact_alone("nothing"));
  // A tensor that the model cannot have declares its axes too.
  MapFile const map =
      parse_map_file("axes = { a = 1, b = 'absent' }\ntensors = { '' = ['t: a/4 b'] }\n", "m.toml");
  Model const model(map, map, {Json::object(), "facts", 0});
  EXPECT_FALSE(model.find_tensor("t"));
  EXPECT_FALSE(model.fact_alone("a"));
}

// --- add
// ----------------------------------------------------------------------------------------------------------

std::map<std::string, int> adds_of(std::string const& stored) {
  Sample const s("[stored]\n" + stored);
  std::vector<int> const adds = Side(s.model, s.map, {}).adds();
  std::map<std::string, int> result;
  for (std::size_t t = 0; t < adds.size(); ++t)
    if (adds[t] != 0) result[s.model.tensors()[t].name] = adds[t];
  return result;
}

std::string add_refusal(std::string const& stored) {
  try {
    adds_of(stored);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return "no error";
}

TEST(SideAdds, AreByTensor) {
  using Adds = std::map<std::string, int>;
  EXPECT_EQ(adds_of("'{layer}.w' = 'w: inter hidden'\n"), Adds{});
  EXPECT_EQ(
      adds_of("'{layer}.n' = { is = 'norm: hidden', add = 1 }\n'{layer}.w' = 'w: inter hidden'\n"),
      (Adds{{"norm", 1}}));
  EXPECT_EQ(adds_of("'{layer}.n' = { is = 'norm: hidden', add = '0 - L' }\n"),
            (Adds{{"norm", -3}}));
  EXPECT_EQ(adds_of("'{layer}.n' = { is = 'norm: hidden', add = 0 }\n"), Adds{});
  // An entry that does not hold says nothing.
  EXPECT_EQ(
      adds_of(
          "'{layer}.n' = [{ is = 'norm: hidden', add = 1, when = 'L == 2' }, { is = 'norm: hidden', add = 2, when = 'L == 3' }]\n"),
      (Adds{{"norm", 2}}));
  EXPECT_EQ(
      adds_of(
          "'{layer}.n' = { is = 'norm: hidden', add = 1 }\n'{layer}.m' = { is = 'norm: hidden', add = 1 }\n"),
      (Adds{{"norm", 1}}));
}

TEST(SideAdds, OfOneTensorMustAgree) {
  EXPECT_EQ(add_refusal(
                "'{layer}.n' = { is = 'norm: hidden', add = 1 }\n\n'{layer}.m' = 'norm: hidden'\n")
                .find("m.toml:13: add = 0, and 1 at m.toml:11: "
                      "stored values of 'norm' would differ."),
            0U)
      << add_refusal(
             "'{layer}.n' = { is = 'norm: hidden', add = 1 }\n\n'{layer}.m' = 'norm: hidden'\n");
}

}  // namespace
}  // namespace reshard
