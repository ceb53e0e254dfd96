#include <gtest/gtest.h>

#include <set>

#include "core/mapping/expressions/placed_name.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard {
namespace {

using test::SampleMesh;
using test::SampleModel;

std::string label(SampleModel const& sample) { return sample.family + " " + sample.config.dump(); }

/// Side::pieces(), which are the same as numbers.
std::vector<Piece> pieces_of(Side const& side, StoredName const& name, SidePlace const& place) {
  std::vector<Piece> pieces = side.pieces(name, place);
  std::vector<InternedPiece> expected;
  for (Piece const& piece : pieces) expected.push_back(interned(piece));
  auto const numbers = side.interned_pieces(name, place);
  EXPECT_EQ(std::vector<InternedPiece>(numbers.begin(), numbers.end()), expected) << name.name;
  return pieces;
}

/// What is found once for many places is what is found at each.
void expect_placed(Side const& side, StoredName const& name, SidePlace const& place,
                   PlacedName& placed) {
  EXPECT_EQ(&placed.layout(place), &side.layout(name.entry, place)) << name.name;
  auto const numbers = side.interned_pieces(name, place);
  std::vector<InternedPiece> const expected(numbers.begin(), numbers.end());
  auto const found = placed.pieces(place);
  EXPECT_EQ(std::vector<InternedPiece>(found.begin(), found.end()), expected) << name.name;
}

/// A tensor's pieces in every place of a mesh, equal boxes once.
std::vector<std::vector<Piece>> pieces_of_mesh(Model const& model, Side const& side,
                                               SampleMesh const& at) {
  std::vector<std::vector<Piece>> result(model.tensors().size());
  PipelineSpec spec;
  spec.ranks = at.mesh.pp;
  spec.chunks_per_rank = at.mesh.vpp;
  spec.first_stage_layers = at.first_stage_layers;
  spec.last_stage_layers = at.last_stage_layers;
  spec.decoder_layers = 6;
  std::set<std::string> seen;
  auto const chunks = pipeline_chunks(spec);
  for (PipelineChunk const& chunk : chunks) {
    std::vector<StoredName> const names = side.names(&chunk);
    std::vector<PlacedName> placed;
    for (StoredName const& name : names) placed.emplace_back(side, name);
    for (MeshPlace const& place : at.mesh.places())
      for (std::size_t n = 0; n < names.size(); ++n) {
        StoredName const& name = names[n];
        expect_placed(side, name, {place, &chunk}, placed[n]);
        if (name.copy) continue;
        for (Piece& piece : pieces_of(side, name, {place, &chunk})) {
          std::string key = fmt::format("{}", index(piece.tensor));
          std::vector<PieceDigit> digits(piece.digits.begin(), piece.digits.end());
          std::sort(digits.begin(), digits.end(),
                    [](auto const& a, auto const& b) { return a.axis < b.axis; });
          for (PieceDigit const& digit : digits)
            key += fmt::format("|{},{},{}", digit.axis, digit.first, digit.count);
          if (seen.insert(key).second) result[index(piece.tensor)].push_back(std::move(piece));
        }
      }
  }
  return result;
}

void expect_tiled(Model const& model, std::vector<std::vector<Piece>> const& pieces) {
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    if (!model.exists(TensorId(t))) continue;
    auto const fault = tile(pieces[t], model.domain(model.tensors()[t]), model.axes());
    EXPECT_FALSE(fault) << model.tensors()[t].name.text() << ": " << fault->holders << " hold "
                        << fault->where;
  }
}

TEST(Maps, EveryFamilyCoversEachTensorOnceOnBothSidesInEveryLayout) {
  MapFile const core = test::map_file("mcore");
  for (SampleModel const& sample : test::sample_models()) {
    SCOPED_TRACE(label(sample));
    MapFile const family = test::map_file(sample.family);
    Model model(family, core, {sample.config, "config.json", 0});
    Side const global(model, family, {});
    apply_family(model, global);
    std::vector<std::vector<Piece>> whole(model.tensors().size());
    for (StoredName const& name : global.names(nullptr))
      for (Piece& piece : pieces_of(global, name, {}))
        whole[index(piece.tensor)].push_back(std::move(piece));
    expect_tiled(model, whole);
    for (SampleMesh const& at : test::sample_meshes(model.axes().find("expert") >= 0))
      for (char const* form : {"grouped", "sequential"})
        for (char const* spec : {"te", "local"}) {
          SCOPED_TRACE(fmt::format("tp {} pp {} vpp {} ep {} etp {} {} {}", at.mesh.tp, at.mesh.pp,
                                   at.mesh.vpp, at.mesh.ep, at.mesh.etp, form, spec));
          Side const local(model, core,
                           {true, at.mesh, {{"form", form}, {"spec", spec}}, {}, {}, "test"});
          expect_tiled(model, pieces_of_mesh(model, local, at));
        }
  }
}

TEST(Maps, ArgsAndConfigDescribeTheSameTensors) {
  MapFile const core = test::map_file("mcore");
  for (SampleModel const& sample : test::sample_models()) {
    SCOPED_TRACE(label(sample));
    MapFile const family = test::map_file(sample.family);
    Model by_config(family, core, {sample.config, "config.json", 0});
    apply_family(by_config, Side(by_config, family, {}));
    Model by_args(core, core, {sample.args, "args", 0});
    apply_present(by_args, core);
    for (LogicalTensor const& tensor : by_config.tensors()) {
      TensorId const ours = by_config.find_tensor(tensor.name).value();
      if (!by_config.exists(ours)) continue;
      std::optional<TensorId> const found = by_args.find_tensor(tensor.name);
      ASSERT_TRUE(found) << tensor.name.text();
      EXPECT_TRUE(by_args.exists(*found)) << tensor.name.text();
      EXPECT_EQ(by_config.volume(tensor), by_args.volume(by_args.tensor(*found)))
          << tensor.name.text();
    }
  }
}

TEST(Maps, ArgsOfAFamilyFitItsMatchAndNoOther) {
  for (SampleModel const& sample : test::sample_models()) {
    ExpressionScope scope;
    scope.absent_spreads = true;
    scope.key = [&](std::string_view key) { return std::optional<Json>(fact(sample.args, key)); };
    for (char const* family : {"llama", "qwen2", "qwen3", "qwen3_moe", "mixtral"})
      EXPECT_EQ(test::map_file(family).match_args.holds(scope), sample.family == family)
          << sample.family << " against " << family;
  }
}

TEST(Maps, ConfigMadeFromArgsGivesTheSameModel) {
  MapFile const core = test::map_file("mcore");
  for (SampleModel const& sample : test::sample_models()) {
    SCOPED_TRACE(label(sample));
    MapFile const family = test::map_file(sample.family);
    Model const by_args(core, core, {sample.args, "args", 0});
    Json::Object members;
    for (auto& [key, value] : by_args.evaluate(family.config))
      members.emplace_back(key, std::move(value));
    Model const made(family, core, {Json(std::move(members)), "made", 0});
    Model const given(family, core, {sample.config, "config.json", 0});
    for (LogicalTensor const& tensor : given.tensors()) {
      std::optional<TensorId> const t = made.find_tensor(tensor.name);
      ASSERT_TRUE(t) << tensor.name.text();
      EXPECT_EQ(made.volume(made.tensor(*t)), given.volume(tensor)) << tensor.name.text();
    }
  }
}

TEST(Maps, MoreRanksThanHeadsAreRefusedMoreThanGroupsAreNot) {
  MapFile const core = test::map_file("mcore");
  Model const model(core, core, {test::sample_models()[0].args, "args", 0});
  auto const first_rank = [&](int tp) {
    Side const side(model, core,
                    {true,
                     test::MeshSizes{tp, 1, 1, 1, tp},
                     {{"form", "grouped"}, {"spec", "te"}},
                     {},
                     {},
                     "[target] layout"});
    PipelineChunk const chunk{0, 0, {{0, 6, false}}, {}, true, true};
    for (StoredName const& name : side.names(&chunk))
      if (name.name.ends_with("linear_qkv.weight")) side.layout(name.entry, {{}, &chunk});
  };
  EXPECT_NO_THROW(first_rank(8));
  try {
    first_rank(16);
    FAIL();
  } catch (Error const& error) {
    EXPECT_NE(error.sentence().find("'group * head' is 8, which 16 does not divide"),
              std::string::npos)
        << error.sentence();
  }
}

struct BadMap {
  char const* text;
  char const* fragment;
};

TEST(Maps, MistakesNameFileAndLine) {
  for (auto const& [text, fragment] : std::vector<BadMap>{
           {"[stroed]\na = 1", "Did you mean 'stored'"},
           {"[stored]\n\"a\" = { is = \"x: hidden\", wen = \"1\" }", "'wen'"},
           {"[axes]\nhidden = \"4 +\"", "m.toml:2"},
           {"[axes\n", "m.toml:1"},
           {"[rules]\ntp = [ { axis = \"a\", uneven = \"share\" } ]", "uneven"},
           {"[tensors]\n\"\" = [ \"embed vocab\" ]", "name: axes"},
       }) {
    try {
      parse_map_file(text, "m.toml");
      FAIL() << text;
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(error.sentence().find(fragment), std::string::npos) << error.sentence();
    }
  }
}

TEST(Maps, NamesAndAxesThatDoNotFitAreRefused) {
  char const* head =
      "let = { L = 2, M = 0 }\naxes = { hidden = 4, layer = 2, expert = 3, vocab = 8, group = 3 }\n";
  auto const names = [&](std::string const& rest) {
    MapFile const map = parse_map_file(head + rest, "m.toml");
    Model model(map, map, {Json::object(), "facts", 0});
    Side const side(model, map,
                    {true, test::MeshSizes{2, 1, 1, 1, 2}, {}, {}, {}, "[target] layout"});
    PipelineChunk chunk{0, 0, {{0, 2, false}}, {}, true, true};
    std::size_t pieces = 0;
    for (StoredName const& name : side.names(&chunk))
      pieces += side.pieces(name, {{}, &chunk}).size();
    return pieces;
  };
  auto const refused = [&](std::string const& rest, std::string const& fragment) {
    try {
      names(rest);
      FAIL() << rest;
    } catch (Error const& error) {
      EXPECT_NE(error.sentence().find(fragment), std::string::npos) << error.sentence();
    }
  };
  EXPECT_EQ(names("tensors = { \"\" = [ \"a: hidden\" ] }\nstored = { a = \"a: hidden\" }"), 1U);
  refused("tensors = { layer = [ \"a: hidden\" ] }\nstored = { a = \"a: hidden\" }",
          "is neither in the name nor in the shape");
  refused(
      "tensors = { \"\" = [ \"a: hidden\", \"b: hidden\" ] }\nnames = { n = \"w\" }\nstored = { \"{n}\" = \"a: hidden\", w = \"b: hidden\" }",
      "is made by");
  refused("tensors = { \"\" = [ \"a: hidden\" ] }\nstored = { a = \"a: hiden\" }", "hiden");
  refused(
      "rules = { tp = [\"group\"] }\ntensors = { \"\" = [ \"a: group\" ] }\nstored = { a = \"a: group\" }",
      "which 2 does not divide");
}

}  // namespace
}  // namespace reshard
