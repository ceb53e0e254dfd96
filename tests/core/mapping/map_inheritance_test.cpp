// Maps that inherit: what unites, what follows one another, what is found where.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/mapping/sides/side.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

MapFile united(std::string_view base, std::string_view derived) {
  return inherited(parse_map_file(base, "base.toml"), parse_map_file(derived, "derived.toml"));
}

template <class Items>
Lines names_of(Items const& items) {
  Lines result;
  for (auto const& item : items) result.push_back(item.name);
  return result;
}

Lines texts_of(std::vector<NamedExpression> const& items) {
  Lines result;
  for (NamedExpression const& item : items)
    result.push_back(item.name + " = " + item.expression.text());
  return result;
}

Lines entries_of(std::vector<MapName> const& names) {
  Lines result;
  for (MapName const& name : names) {
    std::string line = name.name + " =";
    for (MapEntry const& entry : name.entries) line += " " + entry.is;
    result.push_back(line);
  }
  return result;
}

TEST(MapInheritance, TablesUniteKeyByKeyAndKeepTheBasesOrder) {
  MapFile const map = united(
      "let = { L = 1, M = 2 }\naxes = { model = { a = 1, b = 2 } }\n[sets.layer]\nmoe = 1\ndense = 0\n[options]\nform = 'x'\n",
      "let = { N = 3, L = 4 }\naxes = { other = { b = 5, c = 6 } }\n[sets.layer]\nmoe = 0\nattn = 1\n[options]\nform = 'y'\n");
  EXPECT_EQ(texts_of(map.let), (Lines{"L = 4", "M = 2", "N = 3"}));
  EXPECT_EQ(texts_of(map.axes), (Lines{"a = 1", "b = 5", "c = 6"}));
  EXPECT_EQ(texts_of(map.sets), (Lines{"layer.moe = 0", "layer.dense = 0", "layer.attn = 1"}));
  EXPECT_EQ(texts_of(map.options), (Lines{"form = 'y'"}));
}

TEST(MapInheritance, AStoredNameIsItsPrefixesJoined) {
  MapFile const map =
      united("[stored.'a.']\n'b.weight' = 'x: hidden'\n'c.weight' = ['y: hidden', 'z: hidden']\n",
             "[stored]\n'a.b.weight' = 'other: hidden'\n[stored.'a.c.']\nbias = 'c: hidden'\n");
  EXPECT_EQ(entries_of(map.stored),
            (Lines{"a.b.weight = other: hidden", "a.c.weight = y: hidden z: hidden",
                   "a.c.bias = c: hidden"}));
}

TEST(MapInheritance, TensorsAndMacrosAreReplacedByName) {
  MapFile const map = united(
      "[tensors]\n'' = ['t: hidden', 'u: hidden']\n[names]\nblock = 'a.{layer}.'\n",
      "[tensors]\nlayer = ['t: inter']\n[names]\nblock = [{ when = 'x', text = 'b' }, 'c']\nhead = 'd'\n");
  ASSERT_EQ(names_of(map.tensors), (Lines{"t", "u"}));
  EXPECT_EQ(map.tensors[0].axes.find("layer"), 0U) << map.tensors[0].axes;
  ASSERT_EQ(names_of(map.macros), (Lines{"block", "head"}));
  EXPECT_EQ(map.macros[0].choices.size(), 2U);
}

TEST(MapInheritance, ListsFollowOneAnother) {
  MapFile const map = united("drop = ['a*']\nkeep = ['k*']\nrules = { tp = ['x'] }\n",
                             "drop = ['b*']\nkeep = 'l*'\nrules = { ep = ['y'] }\n");
  EXPECT_EQ(map.drop, (Lines{"a*", "b*"}));
  EXPECT_EQ(map.keep, (Lines{"k*", "l*"}));
  ASSERT_EQ(map.rules.size(), 2U);
  EXPECT_EQ(map.rules[0].axis + map.rules[1].axis, "xy");
}

TEST(MapInheritance, MatchAndTheNameAreNotInherited) {
  MapFile const map = united("match = { model_type = ['m'], args = 'x' }\nfacts = 'text_config'\n",
                             "let = { L = 1 }\n");
  EXPECT_TRUE(map.model_types.empty());
  EXPECT_TRUE(map.match_args.empty());
  EXPECT_EQ(map.name, "derived.toml");
  EXPECT_EQ(map.facts, "text_config");
  EXPECT_EQ(united("facts = 'text_config'\n", "facts = 'llm_config'\n").facts, "llm_config");
}

TEST(MapInheritance, SchemesAreReplacedWhole) {
  std::string const fp8 = "values = { name = 'weight', dtype = 'F8_E4M3', blocks = [1, 1] }\n";
  MapFile const map = united(
      "[quant.a]\n" + fp8 +
          "scale = { name = 'scale', dtype = 'F32', blocks = ['all', 'all'] }\n[quant.b]\n" + fp8,
      "[quant.a]\n" + fp8);
  ASSERT_EQ(names_of(map.quant), (Lines{"a", "b"}));
  EXPECT_EQ(map.quant[0].parts.size(), 1U);
}

TEST(MapInheritance, WhatOneMapSaysTwiceIsNotHiddenByABase) {
  MapFile const map = united("[stored]\n'a' = 'x: hidden'\n",
                             "[stored]\n'b.c' = 'x: hidden'\n[stored.'b.']\nc = 'y: hidden'\n");
  EXPECT_EQ(names_of(map.stored), (Lines{"a", "b.c", "b.c"}));
}

/// Maps in folders of one's own.
class MapLoadTest : public testing::Test {
 protected:
  fs::path write(std::string const& name, std::string const& text) const {
    fs::path const path = scratch_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }
  fs::path folder(std::string const& name) const { return scratch_.path() / name; }
  std::string refusal(fs::path const& path, std::vector<fs::path> const& folders = {}) const {
    try {
      load_map_file(path, folders);
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.sentence();
    }
    return "";
  }

  ScratchFolder scratch_{"map_load"};
};

TEST_F(MapLoadTest, ABaseBesideTheMapComesBeforeOneInTheFolders) {
  write("a/base.toml", "let = { L = 1 }\n");
  write("b/base.toml", "let = { L = 2 }\n");
  write("b/other.toml", "let = { L = 3 }\nbase = 'base'\n");
  write("c/other.toml", "let = { L = 4 }\n");
  std::vector<fs::path> const folders{folder("missing"), folder("b"), folder("c")};
  EXPECT_EQ(texts_of(load_map_file(write("a/m.toml", "base = 'base'\n"), folders).let),
            (Lines{"L = 1"}));
  EXPECT_EQ(texts_of(load_map_file(write("d/m.toml", "base = 'base'\n"), folders).let),
            (Lines{"L = 2"}));
  EXPECT_EQ(texts_of(load_map_file(write("a/n.toml", "base = 'other'\n"), folders).let),
            (Lines{"L = 3"}));
}

TEST_F(MapLoadTest, OfSeveralBasesTheLaterOneWins) {
  write("a.toml", "let = { L = 1, M = 1 }\ndrop = ['a']\n");
  write("b.toml", "let = { L = 2, N = 2 }\ndrop = ['b']\n");
  MapFile const map =
      load_map_file(write("m.toml", "base = ['a', 'b']\nlet = { N = 3 }\ndrop = ['m']\n"));
  EXPECT_EQ(texts_of(map.let), (Lines{"L = 2", "M = 1", "N = 3"}));
  EXPECT_EQ(map.drop, (Lines{"a", "b", "m"}));
  EXPECT_TRUE(map.bases.empty());
  EXPECT_EQ(map.name, "m.toml");
}

TEST_F(MapLoadTest, ABaseOfABaseIsTakenIn) {
  write("first.toml", "let = { A = 1, B = 1, C = 1 }\n");
  write("second.toml", "base = 'first'\nlet = { B = 2, C = 2 }\n");
  EXPECT_EQ(texts_of(load_map_file(write("third.toml", "base = 'second'\nlet = { C = 3 }\n")).let),
            (Lines{"A = 1", "B = 2", "C = 3"}));
}

TEST_F(MapLoadTest, AMissingBaseIsNamed) {
  EXPECT_NE(refusal(write("m.toml", "base = 'lama'\n"))
                .find("m.toml: base = \"lama\": there is no lama.toml beside this map"),
            std::string::npos);
}

TEST_F(MapLoadTest, ACircleIsRefused) {
  write("b.toml", "base = 'c'\n");
  write("c.toml", "base = 'a'\n");
  EXPECT_NE(refusal(write("a.toml", "base = 'b'\n"))
                .find("a.toml: inherits from itself by way of c.toml"),
            std::string::npos);
  EXPECT_NE(refusal(write("self.toml", "base = 'self'\n"))
                .find("self.toml: inherits from itself by way of self.toml"),
            std::string::npos);
  // The same base twice is no circle.
  write("leaf.toml", "let = { L = 1 }\n");
  write("left.toml", "base = 'leaf'\n");
  write("right.toml", "base = 'leaf'\n");
  EXPECT_EQ(texts_of(load_map_file(write("top.toml", "base = ['left', 'right']\n")).let),
            (Lines{"L = 1"}));
}

TEST_F(MapLoadTest, FalseTakesAnInheritedNameAway) {
  write(
      "base.toml",
      "[stored.'a.']\nb = 'x: hidden'\nc = 'y: hidden'\n[args]\nkept = 1\ngone = 2\n[config]\ngone = 3\nkept = 'false'\n");
  MapFile const map = load_map_file(write(
      "m.toml",
      "base = 'base'\n[stored]\n'a.b' = false\n[args]\ngone = false\n[config]\ngone = false\n"));
  EXPECT_EQ(names_of(map.stored), (Lines{"a.c"}));
  EXPECT_EQ(texts_of(map.args), (Lines{"kept = 1"}));
  EXPECT_EQ(texts_of(map.config), (Lines{"kept = false"}));
  // A map further down may say it again.
  write("m2.toml", "base = 'base'\n[stored]\n'a.b' = false\n");
  EXPECT_EQ(
      entries_of(load_map_file(write("again.toml", "base = 'm2'\n[stored.'a.']\nb = 'z: hidden'\n"))
                     .stored),
      (Lines{"a.b = z: hidden", "a.c = y: hidden"}));
}

TEST_F(MapLoadTest, FalseTakesAllInheritedNamesOfAPatternAway) {
  write(
      "base.toml",
      "[stored.'a.']\nb = 'x: hidden'\nc = 'y: hidden'\n[stored]\nd = 'z: hidden'\n[args]\nkept = 1\n[neutral]\nk = 'it'\n[config]\na = 1\nb = 2\n[defaults]\nn_a = 3\nm = 4\n");
  MapFile const map = load_map_file(write(
      "m.toml",
      "base = 'base'\n[stored]\n'a.*' = false\n'a.c' = 'w: hidden'\n[config]\n'*' = false\nb = 5\n[neutral]\n'*' = false\n[defaults]\n'n_*' = false\n"));
  EXPECT_EQ(entries_of(map.stored), (Lines{"d = z: hidden", "a.c = w: hidden"}));
  EXPECT_EQ(texts_of(map.args), (Lines{"kept = 1"}));
  EXPECT_EQ(texts_of(map.config), (Lines{"b = 5"}));
  EXPECT_EQ(texts_of(map.defaults), (Lines{"m = 4"}));
  EXPECT_EQ(map.neutral.size(), 2U);  // there a pattern is a name
}

TEST_F(MapLoadTest, AMistakeInABaseNamesTheBase) {
  write("base.toml", "[stored]\n\n'a' = { is = 'x', was = 'y' }\n");
  EXPECT_EQ(refusal(write("m.toml", "base = 'base'\n")).find("base.toml:3: 'was'"), 0U);
}

// --- facts
// --------------------------------------------------------------------------------------------------------

Json config() {
  return parse_json(
      R"({"hidden_size": 8, "layers": 2, "nested": {"a": 1}, "text_config": {"hidden_size": 16, "nested": {"a": 2}},
          "vision_config": {"hidden_size": 4}})",
      "config");
}

Index value(std::string const& facts, std::string const& expression) {
  MapFile const map = parse_map_file(
      (facts.empty() ? "" : "facts = '" + facts + "'\n") + "let = { x = \"" + expression + "\" }\n",
      "m.toml");
  Json const x = Model(map, map, {config(), "config.json", 0}).value("x");
  return x.integer() == nullptr ? -1 : *x.integer();
}

TEST(MapFacts, AMemberComesBeforeTheTopLevel) {
  EXPECT_EQ(value("text_config", "hidden_size"), 16);
  EXPECT_EQ(value("text_config", "nested.a"), 2);
  EXPECT_EQ(value("text_config", "layers"), 2);
  EXPECT_EQ(value("text_config", "top.hidden_size"), 8);
  EXPECT_EQ(value("text_config", "vision_config.hidden_size"), 4);
}

TEST(MapFacts, WithoutTheMemberTheTopLevelIsAll) {
  EXPECT_EQ(value("", "hidden_size"), 8);
  EXPECT_EQ(value("llm_config", "hidden_size"), 8);
  EXPECT_EQ(value("layers", "hidden_size"), 8);  // no object
}

TEST(MapFacts, ADefinitionOfAFactsNameSeesTheFact) {
  MapFile const map = parse_map_file(
      "facts = 'text_config'\nlet = { hidden_size = 'hidden_size * 2' }\naxes = { hidden = 'hidden_size' }\n",
      "m.toml");
  EXPECT_EQ(Model(map, map, {config(), "config.json", 0}).axes()[0].size, 32);
}

}  // namespace
}  // namespace reshard
