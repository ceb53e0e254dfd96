#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/layout/pieces/join.hpp"
#include "core/mapping/sides/side.hpp"
#include "tests/support/sample_models.hpp"

// A parallel axis that no code names: a map's rule and a mesh are all it takes.

namespace reshard::test {
namespace {

constexpr char const* small_map = R"(
mesh = [ "tp", "zz", "ep" ]
let = { L = 2, M = 0 }
axes = { hidden = 12, inter = 6, layer = 2, expert = 4 }
rules = { tp = [ "inter" ], zz = [ "hidden" ], ep = [ "expert" ] }
tensors = { "layer expert" = [ "up: inter hidden", "down: hidden inter" ] }
stored = { "{layer}.{expert}.up" = "up: inter hidden", "{layer}.{expert}.down" = "down: hidden inter" }
)";

struct SmallSide {
  explicit SmallSide(Mesh mesh, bool local = true, std::string const& text = small_map,
                     bool lists_sizes = false)
      : map(parse_map_file(text, "m.toml")),
        model(map, map, {Json::object(), "facts", 0}),
        side(model, map,
             {local, std::move(mesh), {}, {}, {}, "layout.", !local, "", false, lists_sizes}) {}

  MapFile map;
  Model model;
  Side side;
};

std::string sentence_of(std::function<void()> const& work) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << error.sentence();
    return error.sentence();
  }
  return {};
}

/// What a piece holds of an axis.
std::pair<Index, Index> held(SmallSide const& at, Piece const& piece, std::string_view axis) {
  for (PieceDigit const& digit : piece.digits)
    if (at.model.axes()[digit.axis].name == axis) return {digit.first, digit.first + digit.count};
  return {-1, -1};
}

TEST(FurtherAxis, CutsItsAxisInEveryPlaceOfTheMesh) {
  Mesh const mesh({{"zz", 3}, {"tp", 2}, {"ep", 2}});
  SmallSide const at(mesh);
  auto const names = at.side.names(nullptr);
  ASSERT_EQ(names.size(), 8U) << "2 layers of 2 experts of a rank";
  for (Index number = 0; number < mesh.places(); ++number) {
    MeshPlace const place = mesh.place(number);
    Index const zz = place[0];
    Index const tp = place[1];
    Index const ep = place[2];
    for (StoredName const& name : names) {
      bool const up = name.name.ends_with("up");
      EXPECT_EQ(at.side.layout(name.entry, {place, nullptr}).file_shape,
                up ? (std::vector<Index>{3, 4}) : (std::vector<Index>{4, 3}));
      auto const pieces = at.side.pieces(name, {place, nullptr});
      ASSERT_EQ(pieces.size(), 1U);
      EXPECT_EQ(held(at, pieces[0], "hidden"), std::pair(zz * 4, zz * 4 + 4)) << name.name;
      EXPECT_EQ(held(at, pieces[0], "inter"), std::pair(tp * 3, tp * 3 + 3)) << name.name;
      Index const expert = ep * 2 + (name.name[2] - '0');
      EXPECT_EQ(held(at, pieces[0], "expert"), std::pair(expert, expert + 1)) << name.name;
    }
  }
}

TEST(FurtherAxis, CutsTheRowsThatRanksSaveOfAWholeTensor) {
  Mesh const mesh({{"zz", 2}, {"tp", 3}});
  SmallSide const at(mesh, false);
  for (StoredName const& name : at.side.names(nullptr)) {
    bool const up = name.name.ends_with("up");
    for (Index number = 0; number < mesh.places(); ++number) {
      MeshPlace const place = mesh.place(number);
      Share const hidden{{place[0] * 6, place[0] * 6 + 6}};
      Share const inter{{place[1] * 2, place[1] * 2 + 2}};
      EXPECT_EQ(at.side.rank_rows(name, {place, nullptr}),
                up ? (std::vector<Share>{inter, hidden}) : (std::vector<Share>{hidden, inter}));
    }
  }
}

TEST(FurtherAxis, IsAWordOfExpressionsAndOneWhereTheMeshLacksIt) {
  std::string const text =
      std::string(small_map) +
      "[names]\nn = [ { when = \"zz > 1\", text = \"cut\" }, { text = \"whole\" } ]\n";
  auto const first_name = [&](Mesh mesh) {
    std::string with = text;
    with.replace(with.find("{layer}.{expert}.up"), 19, "{n}.{layer}.{expert}.up");
    SmallSide const at(std::move(mesh), true, with);
    return at.side.names(nullptr).front().name;
  };
  EXPECT_EQ(first_name(Mesh({{"zz", 2}})), "cut.0.0.up");
  EXPECT_EQ(first_name(Mesh({{"tp", 2}})), "whole.0.0.up");
}

TEST(FurtherAxis, SizesThatDoNotDivideAreRefusedByName) {
  SmallSide const at(Mesh({{"zz", 5}}));
  std::string const text = sentence_of([&] {
    for (StoredName const& name : at.side.names(nullptr)) at.side.layout(name.entry, {});
  });
  EXPECT_EQ(
      text,
      "layout.zz = 5: axis 'hidden' has 12 indices, which 5 does not divide. Choose a divisor of 12: 1, 2, 3, 4, 6, 12.");
}

/// Two axes that one mesh axis cuts, one of them by its rows when there are more ranks than
/// indices, and an axis in names.
constexpr char const* map_with_limits = R"(
mesh = [ "tp", "ep" ]
let = { L = 2, M = 0 }
axes = { hidden = 12, inter = 18, layer = 2, expert = 10, group = 4, head = 2 }
rules = { tp = [ "inter", { axis = "group", uneven = "cut", divides = "group * head" } ], ep = [ "expert" ] }
tensors = { "layer expert" = [ "up: inter hidden" ], layer = [ "q: group head hidden" ] }
stored = { "{layer}.{expert}.up" = "up: inter hidden", "{layer}.q" = "q: (group head) hidden" }
)";

TEST(FurtherAxis, RefusalsOfAJobListTheSizesThatFitEverywhere) {
  auto const refusal = [&](MeshAxis const& axis, bool local = true) {
    SmallSide const at(Mesh({axis}), local, map_with_limits, true);
    return sentence_of([&] {
      for (StoredName const& name : at.side.names(nullptr)) {
        if (local)
          at.side.layout(name.entry, {});
        else
          at.side.rank_rows(name, {});
      }
    });
  };
  // Of 18 indices 1, 2, 3, 6, 9 and 18 are divisors; 8 heads in 4 groups allow 1, 2, 4 and 8.
  EXPECT_EQ(refusal({"tp", 4}),
            "layout.tp = 4: axis 'inter' has 18 indices, which 4 does not divide. Sizes that fit: "
            "1, 2. Choose one of them.");
  EXPECT_NE(refusal({"tp", 3}).find("Sizes that fit: 1, 2. Choose"), std::string::npos)
      << refusal({"tp", 3});
  EXPECT_EQ(refusal({"ep", 3}),
            "layout.ep = 3: axis 'expert' has 10 indices, which 3 does not divide. Sizes that fit: "
            "1, 2, 5, 10. Choose one of them.");
  EXPECT_NE(refusal({"tp", 4}, false).find("Sizes that fit: 1, 2. Choose"), std::string::npos)
      << refusal({"tp", 4}, false);
  SmallSide const neither(Mesh({{"tp", 4}, {"ep", 3}}), true, map_with_limits, true);
  std::string const first = sentence_of([&] { neither.side.names(nullptr); });
  EXPECT_NE(first.find("Sizes that fit: 1, 2, 5, 10. Choose"), std::string::npos)
      << "whatever other sizes do not fit: " << first;
}

TEST(FurtherAxis, ASizeFitsWhereNothingIsRefused) {
  for (bool const local : {true, false})
    for (char const* axis : {"tp", "zz", "ep"}) {
      std::vector<Index> fit;
      for (Index size = 1; size <= 12; ++size) {
        SmallSide const at(Mesh({{axis, size}}), local);
        bool const refused = !sentence_of([&] {
                                for (StoredName const& name : at.side.names(nullptr)) {
                                  if (local)
                                    at.side.layout(name.entry, {});
                                  else
                                    at.side.rank_rows(name, {});
                                }
                              }).empty();
        EXPECT_EQ(at.side.fits(), !refused) << axis << " " << size;
        if (!refused) fit.push_back(size);
      }
      SmallSide const at(Mesh({{axis, 1}}), local);
      SideOptions options;
      options.local = local;
      options.in_front = !local;
      options.mesh = Mesh({{axis, 1}});
      std::vector<Index> const found = fitting_sizes(at.model, at.map, options, axis, 12);
      for (Index const size : fit)
        EXPECT_TRUE(std::ranges::count(found, size) == 1) << axis << size;
      for (Index const size : found)
        EXPECT_TRUE(std::ranges::count(fit, size) == 1) << axis << size;
    }
}

TEST(FurtherAxis, PlacesAreToldByTheAxesThatCut) {
  Mesh const mesh({{"tp", 2}, {"pp", 2}, {"zz", 3}});
  SmallSide const at(mesh);
  EXPECT_EQ(at.side.place_text({mesh.at({{"tp", 1}, {"zz", 2}}), nullptr}), "tp 1 · zz 2");
  SidePlace const place{mesh.at({{"zz", 2}}), nullptr};
  EXPECT_EQ(at.side.held("hidden", place), std::optional<reshard::Run>({8, 12, false}));
  EXPECT_EQ(at.side.held("layer", place), std::optional<reshard::Run>({0, 2, false}));
  EXPECT_FALSE(at.side.held("vocab", place));
}

std::string rules_refused(std::string const& rules) {
  std::string text = small_map;
  std::string const known = R"({ tp = [ "inter" ], zz = [ "hidden" ], ep = [ "expert" ] })";
  text.replace(text.find(known), known.size(), rules);
  return sentence_of(
      [&] { SmallSide const at(Mesh(), true, text + "[places]\ndecoder = \"L\"\n"); });
}

TEST(MeshRules, NameAxesThatTheMapLists) {
  EXPECT_EQ(rules_refused(R"({ zy = [ "hidden" ] })"),
            "m.toml:5: 'zy' is not a mesh axis. Known: tp, zz, ep.");
  EXPECT_EQ(
      rules_refused(R"({ tp = [ "hidden" ], zz = [ "hidden" ] })"),
      "m.toml:5: 'hidden' is cut by 'zz' here, and by 'tp' at m.toml:5. One mesh axis cuts an axis: remove one of the rules.");
  EXPECT_EQ(rules_refused(R"({ zz = [ "hidden", "decoder" ] })"),
            "m.toml:5: 'zz' distributes the layers of a pipeline ('decoder') and cuts an axis "
            "('hidden'). Give the axis to another mesh axis.");
  EXPECT_EQ(rules_refused(R"({ zz = [ "hidden" ], tp = [ "decoder" ] })"), "");
}

TEST(MeshAxes, AreThoseOfAMapAndOfItsBase) {
  MapFile const core = inherited(
      map_file("mcore"), parse_map_file("mesh = [ \"zz\" ]\nrules = { zz = [ \"dim\" ] }\n", "x"));
  std::vector<std::string> axes = mesh_axes(map_file("mcore"));
  EXPECT_EQ(std::ranges::count(axes, "tp"), 1);
  axes.emplace_back("zz");
  EXPECT_EQ(mesh_axes(core), axes);
  EXPECT_EQ(mesh_axis_of(core, "dim"), "zz");
  EXPECT_EQ(mesh_axis_of(core, "layer"), "");
  EXPECT_EQ(pipeline_axis(core), "pp");
  MapFile const without = parse_map_file("rules = { tp = [ \"a\", \"b\" ], x = [ \"c\" ] }\n", "x");
  EXPECT_EQ(mesh_axes(without), (std::vector<std::string>{"tp", "x"}));
}

/// Megatron-Core's own map with data sharding of the hidden axis: all tensors of every family.
TEST(FurtherAxis, OfMegatronsMapCoversEveryTensorOnce) {
  MapFile const core =
      inherited(map_file("mcore"),
                parse_map_file("mesh = [ \"zz\" ]\nrules = { zz = [ \"hidden\" ] }\n", "x"));
  Mesh const mesh({{"zz", 4}, {"tp", 2}});
  for (SampleModel const& sample : sample_models()) {
    MapFile const family = map_file(sample.family);
    Model model(family, core, {sample.config, "config.json", 0});
    apply_family(model, Side(model, family, {}));
    Side const side(model, core,
                    {true, mesh, {{"form", "grouped"}, {"spec", "te"}}, {}, {}, "test"});
    PipelineChunk const chunk{0, 0, {{0, 6, false}}, {}, true, true};
    std::vector<std::vector<Piece>> pieces(model.tensors().size());
    std::set<std::string> seen;
    for (Index number = 0; number < mesh.places(); ++number)
      for (StoredName const& name : side.names(&chunk)) {
        if (name.copy) continue;
        for (Piece& piece : side.pieces(name, {mesh.place(number), &chunk})) {
          std::string key = fmt::format("{}", index(piece.tensor));
          for (PieceDigit const& digit : piece.digits)
            key += fmt::format("|{},{},{}", digit.axis, digit.first, digit.count);
          if (seen.insert(key).second) pieces[index(piece.tensor)].push_back(std::move(piece));
        }
      }
    for (std::size_t t = 0; t < model.tensors().size(); ++t) {
      if (!model.exists(TensorId(t))) continue;
      auto const fault = tile(pieces[t], model.domain(model.tensors()[t]), model.axes());
      EXPECT_FALSE(fault) << sample.family << ", " << model.tensors()[t].name.text() << ": "
                          << fault->holders << " hold " << fault->where;
    }
  }
}

TEST(FurtherAxis, RowsThatDoNotDivideAreRefused) {
  SmallSide const at(Mesh({{"tp", 8}}), true, R"(
mesh = [ "tp" ]
let = { L = 2, M = 0 }
axes = { hidden = 12, layer = 2, group = 4, head = 2 }
rules = { tp = [ { axis = "group", uneven = "cut", divides = "group * head" } ] }
tensors = { layer = [ "s: group hidden" ] }
stored = { "{layer}.s" = "s: group hidden" }
)");
  EXPECT_NE(sentence_of([&] {
              for (StoredName const& name : at.side.names(nullptr)) at.side.layout(name.entry, {});
            }).find("'s: group hidden' has 4 rows in dimension 0, which 8 does not divide"),
            std::string::npos);
}

}  // namespace
}  // namespace reshard::test
