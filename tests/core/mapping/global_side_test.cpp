#include "core/mapping/sides/side.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "tests/core/mapping/slow_megatron.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard::test {
namespace {

using Indices = std::vector<Index>;
using Options = std::map<std::string, Json>;

/// A small map of its own: two layers, three experts.
struct SmallMap {
  explicit SmallMap(std::string const& rest, MeshSizes sizes = {},
                    std::map<std::string, Index> padded = {})
      : map(parse_map_file(
            "let = { L = 3, M = 0 }\naxes = { hidden = 4, layer = 3, expert = 2, vocab = 5 }\n" +
                rest,
            "m.toml")),
        model(map, map, {Json::object(), "facts", 0}),
        mesh(sizes),
        side(model, map, {false, mesh, {}, std::move(padded), {}, "[target] layout", true}) {}

  std::vector<std::string> shown() const {
    std::vector<std::string> lines;
    for (StoredName const& name : side.names(nullptr)) {
      std::string line = name.name;
      for (FrontAxis const& front : name.front) {
        line += " " + model.axes()[front.axis].name;
        for (auto const& run : front.runs) line += fmt::format(" {}:{}", run.begin, run.end);
      }
      lines.push_back(fmt::format("{} [{}]", line, fmt::join(side.shape(name), ", ")));
    }
    return lines;
  }

  MapFile map;
  Model model;
  Mesh mesh;
  Side side;
};

using Lines = std::vector<std::string>;

std::string sentence_of(std::function<void()> const& work, ErrorKind kind) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), kind) << error.sentence();
    return error.sentence();
  }
  return {};
}

constexpr char const* two_axes = "tensors = { \"layer expert\" = [ \"x: hidden\" ] }\n";

TEST(FrontAxes, AreThoseThatTheNameDoesNotShow) {
  auto const with = [](std::string const& name) {
    return SmallMap(two_axes + ("stored = { \"" + name + "\" = \"x: hidden\" }")).shown();
  };
  EXPECT_EQ(with("w"), (Lines{"w layer 0:3 expert 0:2 [3, 2, 4]"}));
  EXPECT_EQ(with("w{expert}"), (Lines{"w0 layer 0:3 [3, 4]", "w1 layer 0:3 [3, 4]"}));
  EXPECT_EQ(with("{layer}.w"),
            (Lines{"0.w expert 0:2 [2, 4]", "1.w expert 0:2 [2, 4]", "2.w expert 0:2 [2, 4]"}));
  EXPECT_EQ(with("{layer}.{expert}"),
            (Lines{"0.0 [4]", "0.1 [4]", "1.0 [4]", "1.1 [4]", "2.0 [4]", "2.1 [4]"}));
}

TEST(FrontAxes, ConditionsDoNotPutAnIndexIntoTheName) {
  std::string const rest =
      "sets = { layer = { last = \"layer == 2\" } }\nnames = { n = [ { in = \"layer.last\", text = \"last.w{expert}\" }, { text = \"w\" } ] }\n";
  EXPECT_EQ(SmallMap(two_axes + rest + "stored = { \"{n}\" = \"x: hidden\" }").shown(),
            (Lines{"w layer 0:2 expert 0:2 [2, 2, 4]", "last.w0 layer 2:3 [1, 4]",
                   "last.w1 layer 2:3 [1, 4]"}));
}

TEST(FrontAxes, OfOneIndexStayDimensions) {
  MapFile const map = parse_map_file(
      "let = { L = 1, M = 0 }\naxes = { hidden = 4, layer = 1 }\ntensors = { layer = [ \"x: hidden\" ] }\nstored = { w = \"x: hidden\", "
      "\"{layer}.w\" = \"x: hidden\" }",
      "m.toml");
  Model const model(map, map, {Json::object(), "facts", 0});
  Side const side(model, map, {false, {}, {}, {}, {}, "", true});
  auto const names = side.names(nullptr);
  ASSERT_EQ(names.size(), 2U);
  EXPECT_EQ(side.shape(names[0]), (Indices{1, 4}));
  EXPECT_EQ(side.shape(names[1]), (Indices{4}));
}

TEST(FrontAxes, MayCountIndicesWithGaps) {
  SmallMap const at(
      "tensors = { layer = [ \"x: hidden\" ] }\nstored = { \"{layer%2}.w\" = \"x: hidden\" }");
  EXPECT_EQ(at.shown(), (Lines{"0.w layer 0:1 2:3 [2, 4]", "1.w [4]"}));
  StoredName const name = at.side.names(nullptr)[0];
  Indices const begin{1, 1};
  Indices const end{2, 4};
  auto const axis = [&](char const* text) {
    return static_cast<AxisId>(at.model.axes().find(text));
  };
  EXPECT_EQ(at.side.box_pieces(name, begin, end),
            (std::vector<Piece>{
                {{}, {{axis("hidden"), 4, 1, 1, 3, 1}, {axis("layer"), 3, 1, 2, 1, 3}}, {}, 0}}));
}

TEST(FrontAxes, ThatAreNoProductAreRefused) {
  std::string const text = sentence_of(
      [] {
        SmallMap(std::string(two_axes) +
                 "stored = { \"w{if(layer == 0, 0, expert)}\" = \"x: hidden\" }")
            .shown();
      },
      ErrorKind::usage);
  EXPECT_NE(text.find("m.toml:4: 'w0' covers 4 combinations of layer, expert, which is not a full "
                      "product (6)"),
            std::string::npos)
      << text;
}

TEST(FrontAxes, OfMoreIndicesThanAnyModelHasAreRefused) {
  MapFile const map = parse_map_file(
      "let = { L = 1, M = 0 }\naxes = { hidden = 4, expert = \"num_experts\" }\ntensors = { expert = [ \"x: hidden\" ] }\n"
      "stored = { w = \"x: hidden\" }",
      "m.toml");
  Model const model(map, map, {Json::object().set("num_experts", Index{1} << 50), "args", 0});
  Side const side(model, map, {false, {}, {}, {}, {}, "", true});
  std::string const text = sentence_of([&] { side.names(nullptr); }, ErrorKind::usage);
  EXPECT_NE(text.find("it makes more than 4194304 names, 1125899906842624 for each 'expert'"),
            std::string::npos)
      << text;
}

TEST(FrontAxes, OfCopiesAreRefused) {
  std::string const text = sentence_of(
      [] {
        SmallMap(
            "tensors = { \"\" = [ \"x: hidden\" ] }\nstored = { \"w{layer*0}\" = { is = \"x: hidden\", copy = \"1\" } }")
            .shown();
      },
      ErrorKind::usage);
  EXPECT_NE(text.find("'w0' is made for 3 indices of 'layer', which its tensors lack"),
            std::string::npos)
      << text;
}

TEST(FrontAxes, NamesOfTwoEntriesAreNotUnited) {
  std::string const text = sentence_of(
      [] {
        SmallMap(
            "tensors = { layer = [ \"x: hidden\", \"y: hidden\" ] }\nnames = { n = \"w\" }\nstored = { w = \"x: hidden\", \"{n}\" = \"y: hidden\" }")
            .shown();
      },
      ErrorKind::usage);
  EXPECT_NE(text.find("is made by"), std::string::npos) << text;
}

TEST(GlobalBoxes, ThatLeaveTheTensorAreErrorsOfTheSource) {
  SmallMap const at(std::string(two_axes) + "stored = { w = \"x: hidden\" }");
  StoredName const name = at.side.names(nullptr)[0];
  struct BadBox {
    Indices begin, end;
    char const* fragment;
  };
  for (BadBox const& bad : std::vector<BadBox>{
           {{0, 0, 0}, {4, 1, 1}, "[0, 4) of dimension 0, which has 3"},
           {{0, 2, 0}, {1, 1, 1}, "[2, 1) of dimension 1"},
           {{-1, 0, 0}, {1, 1, 1}, "[-1, 1) of dimension 0"},
           {{0, 0, 0}, {1, 1, 5}, "[0, 5) of dimension 0, which has 4"},
           {{0}, {1}, "a box of 1 dimensions does not fit a stored tensor of 3"},
           {{0, 0}, {1, 1}, "a box of 0 dimensions does not fit a stored tensor of 1"},
           {{0, 0, 0, 0}, {1, 1, 1, 1}, "a box of 2 dimensions"}}) {
    std::string const text =
        sentence_of([&] { at.side.box_pieces(name, bad.begin, bad.end); }, ErrorKind::source);
    EXPECT_NE(text.find(bad.fragment), std::string::npos) << text;
  }
  Indices const empty{1, 1, 4};
  EXPECT_TRUE(at.side.box_pieces(name, empty, empty).empty());
}

TEST(GlobalBoxes, OfTensorsWithAViewAreRefused) {
  SmallMap const at(
      "tensors = { \"\" = [ \"x: vocab hidden\" ] }\nstored = { w = { is = \"x: vocab hidden\", view = \"(vocab hidden)\" } }");
  StoredName const name = at.side.names(nullptr)[0];
  EXPECT_EQ(at.side.shape(name), (Indices{20}));
  Indices const begin{0}, end{20};
  EXPECT_NE(
      sentence_of([&] { at.side.box_pieces(name, begin, end); }, ErrorKind::usage).find("view"),
      std::string::npos);
}

constexpr char const* padded_map =
    "rules = { tp = [ { axis = \"vocab\", pad = \"2 * tp\" } ] }\ntensors = { \"\" = [ \"x: vocab hidden\" ] }\nstored = { w = \"x: vocab hidden\" }";

TEST(GlobalPadding, ComesFromTheRuleOrFromTheFile) {
  EXPECT_EQ(SmallMap(padded_map).shown(), (Lines{"w [6, 4]"}));
  EXPECT_EQ(SmallMap(padded_map, {2, 1, 1, 1, 2}).shown(), (Lines{"w [8, 4]"}));
  EXPECT_EQ(SmallMap(padded_map, {2, 1, 1, 1, 2}, {{"vocab", 10}}).shown(), (Lines{"w [10, 4]"}));
  EXPECT_EQ(SmallMap(padded_map, {2, 1, 1, 1, 2}, {{"vocab", 4}}).shown(), (Lines{"w [4, 4]"}))
      << "a file that lacks rows: the proof refuses it";
  EXPECT_EQ(SmallMap(padded_map, {2, 1, 1, 1, 2}).side.padded_size("vocab"), 8);
}

TEST(GlobalPadding, BelongsToNoTensorAndToTheLastRanks) {
  SmallMap const at(padded_map, {4, 1, 1, 1, 4});
  StoredName const name = at.side.names(nullptr)[0];
  Indices const begin{4, 0}, end{8, 4};
  auto const pieces = at.side.box_pieces(name, begin, end);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].digits[0].first, 4);
  EXPECT_EQ(pieces[0].digits[0].count, 1);
  for (int tp = 0; tp < 4; ++tp)
    EXPECT_EQ(at.side.rank_rows(name, {at.mesh.at({{"tp", tp}}), nullptr}),
              (std::vector<Share>{{{tp * 2, tp * 2 + 2}}, {{0, 4}}}));
}

TEST(RankRows, OfANumberInTheNameBelongToOneRank) {
  SmallMap const at(
      "rules = { ep = [ \"expert\" ] }\ntensors = { expert = [ \"x: hidden\" ] }\nstored = { \"w{expert}\" = \"x: hidden\" }",
      {1, 1, 1, 2, 1});
  StoredName const second = at.side.names(nullptr)[1];
  EXPECT_EQ(second.name, "w1");
  EXPECT_EQ(at.side.rank_rows(second, {}), (std::vector<Share>{{}}));
  EXPECT_EQ(at.side.rank_rows(second, {at.mesh.at({{"ep", 1}}), nullptr}),
            (std::vector<Share>{{{0, 4}}}));
}

TEST(RankRows, ThatTheMeshDoesNotDivideAreRefused) {
  SmallMap const at(
      "rules = { ep = [ \"expert\" ] }\ntensors = { expert = [ \"x: hidden\" ] }\nstored = { w = \"x: hidden\" }",
      {1, 1, 1, 3, 1});
  StoredName const name = at.side.names(nullptr)[0];
  EXPECT_NE(sentence_of([&] { at.side.rank_rows(name, {}); }, ErrorKind::usage)
                .find("ep = 3: axis 'expert' has 2"),
            std::string::npos);
}

/// Names with shapes that begin with a text, of the model of slow_args() with experts from layer 1
/// on.
Lines named(Options options, std::string_view begin, char const* freq = "[0, 1, 1]") {
  MapFile const core = map_file("mcore");
  Model model(core, core, {slow_args().set("moe_layer_freq", parse_json(freq, "freq")), "args", 0});
  apply_present(model, core);
  Side const side(model, core,
                  {false, MeshSizes{2, 1, 1, 2, 1}, std::move(options), {}, {}, "test", true});
  for (TensorId const tensor : side.optional_tensors())
    if (!model.tensor(tensor).name.ends_with("gate_bias") &&
        !model.tensor(tensor).name.ends_with("up_bias"))
      model.set_exists(tensor, false);
  Lines lines;
  for (StoredName const& name : side.names(nullptr))
    if (name.name.starts_with(begin))
      lines.push_back(fmt::format("{} [{}]", name.name.substr(begin.size()),
                                  fmt::join(side.shape(name), ", ")));
  return lines;
}

TEST(MegatronGlobal, ExpertsHaveOneTensorOrOneEach) {
  EXPECT_EQ(named({{"form", "dist"}}, "decoder.layers.1.mlp.experts."),
            (Lines{"experts.linear_fc1.weight [4, 8, 6]", "experts.linear_fc2.weight [4, 6, 4]",
                   "experts.linear_fc1.bias [4, 8]"}));
  EXPECT_EQ(named({{"form", "dist"}, {"stacked", 1}}, "decoder.layers.mlp.experts.", "1"),
            (Lines{"experts.linear_fc1.weight [3, 4, 8, 6]",
                   "experts.linear_fc2.weight [3, 4, 6, 4]", "experts.linear_fc1.bias [3, 4, 8]"}));
  EXPECT_EQ(
      named({{"form", "singleton"}, {"halves", 1}}, "decoder.layers.2.mlp.experts.experts.3."),
      (Lines{"linear_fc1.weight_w [4, 6]", "linear_fc1.weight_v [4, 6]", "linear_fc2.weight [6, 4]",
             "linear_fc1.bias_w [4]", "linear_fc1.bias_v [4]"}));
}

TEST(MegatronGlobal, FsdpHasHalvesAndNumbersOfTheWholeModel) {
  EXPECT_EQ(named({{"form", "fsdp"}, {"halves", 1}}, "decoder.layers.1.mlp.experts.linear_fc1."),
            (Lines{"weight0_w [4, 6]", "weight1_w [4, 6]", "weight2_w [4, 6]", "weight3_w [4, 6]",
                   "weight0_v [4, 6]", "weight1_v [4, 6]", "weight2_v [4, 6]", "weight3_v [4, 6]"}))
      << "biases of grouped experts are numbered per rank there";
  EXPECT_EQ(named({{"form", "fsdp_sequential"}, {"halves", 1}},
                  "decoder.layers.1.mlp.experts.local_experts.3."),
            (Lines{"linear_fc1.weight_w [4, 6]", "linear_fc1.weight_v [4, 6]",
                   "linear_fc2.weight [6, 4]", "linear_fc1.bias_w [4]", "linear_fc1.bias_v [4]"}));
  EXPECT_EQ(named({{"form", "fsdp"}, {"halves", 1}}, "decoder.layers.0.mlp."),
            (Lines{"linear_fc1.layer_norm_weight [6]", "linear_fc1.weight_w [8, 6]",
                   "linear_fc1.weight_v [8, 6]", "linear_fc1.bias_w [8]", "linear_fc1.bias_v [8]",
                   "linear_fc2.weight [6, 8]"}));
  EXPECT_EQ(named({{"form", "fsdp"}, {"halves", 1}}, "decoder.layers.2.mlp.shared_experts."),
            (Lines{"linear_fc1.weight_w [2, 6]", "linear_fc1.weight_v [2, 6]",
                   "linear_fc2.weight [6, 2]"}));
}

TEST(MegatronGlobal, PredictionLayersKeepTheirNumber) {
  EXPECT_EQ(named({{"form", "dist"}, {"stacked", 1}},
                  "mtp.layers.0.transformer_layer.self_attention.", "1"),
            (Lines{"linear_qkv.layer_norm_weight [6]", "linear_qkv.weight [32, 6]",
                   "linear_proj.weight [6, 16]"}));
  EXPECT_EQ(named({{"form", "dist"}, {"stacked", 1}}, "mtp.layers.0.e", "1"),
            (Lines{"h_proj.weight [6, 12]", "norm.weight [6]"}));
  EXPECT_EQ(named({{"form", "fsdp"}, {"mtp_block", "mtp_model_layer"}},
                  "mtp.layers.0.mtp_model_layer.self_attention.linear_p"),
            (Lines{"roj.weight [6, 16]"}));
}

/// A model of the size of the largest ones: 61 layers of 256 experts.
TEST(MegatronGlobal, NamesAndBoxesOfALargeModel) {
  MapFile const core = map_file("mcore");
  Json args = slow_args()
                  .set("num_layers", 61)
                  .set("num_experts", 256)
                  .set("hidden_size", 7168)
                  .set("moe_ffn_hidden_size", 2048)
                  .set("moe_layer_freq", 1);
  Model model(core, core, {args, "args", 0});
  apply_present(model, core);
  for (Options const& options : std::vector<Options>{{{"form", "dist"}, {"stacked", 1}},
                                                     {{"form", "dist"}},
                                                     {{"form", "singleton"}, {"halves", 1}}}) {
    Side const side(model, core, {false, MeshSizes{1, 1, 1, 64, 1}, options, {}, {}, "test", true});
    auto const begin = std::chrono::steady_clock::now();
    std::vector<StoredName> const names = side.names(nullptr);
    auto const named_at = std::chrono::steady_clock::now();
    std::size_t boxes = 0;
    for (StoredName const& name : names) {
      if (name.name.find("experts.experts.") == std::string::npos) continue;
      Indices const shape = side.shape(name);
      Indices low(shape.size(), 0), high = shape;
      std::size_t const front = name.front.size();
      for (Index box = 0, count = front == 0 ? 1 : 256 * (front == 1 ? 1 : 61); box < count;
           ++box) {
        for (std::size_t f = 0; f < front; ++f) low[f] = f + 1 == front ? box % 256 : box / 256;
        for (std::size_t f = 0; f < front; ++f) high[f] = low[f] + 1;
        if (!side.box_pieces(name, low, high).empty()) ++boxes;
      }
    }
    std::chrono::duration<double, std::milli> const for_names = named_at - begin,
                                                    for_boxes =
                                                        std::chrono::steady_clock::now() - named_at;
    std::printf("%zu names: %.0f ms; %zu boxes: %.0f ms\n", names.size(), for_names.count(), boxes,
                for_boxes.count());
    EXPECT_GE(boxes, 62U * 256U * 2U);
  }
}

}  // namespace
}  // namespace reshard::test
