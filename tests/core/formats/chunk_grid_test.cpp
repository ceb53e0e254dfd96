#include "core/formats/headers/chunk_grid.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

using Boxes = std::vector<TensorBox>;

ChunkGrid mesh_grid(std::string_view mesh, std::string_view rules) {
  return {ChunkGrid::Kind::mesh, 1, parse_mesh(mesh), parse_placement_rules(rules)};
}

TEST(ChunkGrid, TheFirstRuleThatMatchesCounts) {
  ChunkGrid const grid = mesh_grid("tp=2", "hc_head.*: R; *head*: S0; *: S1");
  std::vector<Index> const shape{4, 6};
  EXPECT_EQ(grid_boxes(grid, "hc_head.weight", shape).size(), 1U);
  EXPECT_EQ(grid_boxes(grid, "lm_head.weight", shape), (Boxes{{{0, 0}, {2, 6}}, {{2, 0}, {4, 6}}}));
  EXPECT_EQ(grid_boxes(grid, "proj.weight", shape), (Boxes{{{0, 0}, {4, 3}}, {{0, 3}, {4, 6}}}));
}

TEST(ChunkGrid, AKeyWithoutARuleIsAnError) {
  ChunkGrid const grid = mesh_grid("tp=2", "*.weight: S0");
  try {
    grid_boxes(grid, "a.bias", std::vector<Index>{4});
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.sentence().find("'a.bias'"), std::string::npos);
  }
}

TEST(ChunkGrid, ARuleThatDoesNotFitNamesTheKey) {
  for (char const* rule : {"*: S1", "*: S0 S0"}) {
    try {
      grid_boxes(mesh_grid("tp=2", rule), "a.bias", std::vector<Index>{4});
      FAIL();
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(error.sentence().find("'a.bias'"), std::string::npos) << error.sentence();
    }
  }
}

TEST(ChunkGrid, ScalarsAreOneChunkUnderEveryGrid) {
  for (ChunkGrid const& grid :
       {mesh_grid("tp=2", "*: S0"), ChunkGrid{ChunkGrid::Kind::ranks, 4, {}, {}},
        ChunkGrid{ChunkGrid::Kind::whole, 1, {}, {}}})
    EXPECT_EQ(grid_boxes(grid, "step", {}), (Boxes{{{}, {}}}));
}

TEST(ChunkGrid, RanksCutRowsAndLateOnesMayBeEmpty) {
  ChunkGrid const grid{ChunkGrid::Kind::ranks, 4, {}, {}};
  EXPECT_EQ(grid_boxes(grid, "w", std::vector<Index>{5, 2}),
            (Boxes{{{0, 0}, {2, 2}}, {{2, 0}, {4, 2}}, {{4, 0}, {5, 2}}}));
}

TEST(ChunkGrid, RulesThatDecideNothingAreNamed) {
  std::vector<std::string> const keys{"layers.0.experts.w1", "layers.0.wq"};
  EXPECT_EQ(idle_rules(mesh_grid("ep=2", "*.expert.*: S0; *: R; *.wq: S0"), keys),
            (std::vector<std::string>{"*.expert.*", "*.wq"}));
  EXPECT_TRUE(idle_rules(mesh_grid("ep=2", "*.experts.*: S0; *: R"), keys).empty());
  EXPECT_THROW(idle_rules(mesh_grid("ep=2", "*: R; zz: S0 S0"), keys), Error);
}

TEST(ChunkGrid, RulesNeedAPatternAndAColon) {
  for (char const* text : {"S0", ": S0", "*: S0; R R"})
    EXPECT_THROW(parse_placement_rules(text), Error) << text;
  EXPECT_EQ(parse_placement_rules(" a:b*: S0 R ;\n*: R R;").size(), 2U);
}

}  // namespace
}  // namespace reshard
