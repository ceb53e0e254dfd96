#include "core/layout/pieces/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

std::string shown(std::vector<TensorBox> const& boxes) {
  std::string text;
  for (TensorBox const& box : boxes) {
    text += text.empty() ? "" : " ";
    for (std::size_t d = 0; d < box.begin.size(); ++d)
      text += fmt::format("{}{}:{}", d == 0 ? "" : ",", box.begin[d], box.end[d]);
  }
  return text;
}

std::string placed(std::vector<Index> const& shape, std::string_view mesh,
                   std::string_view placements) {
  return shown(placed_boxes(shape, parse_mesh(mesh), parse_placements(placements)));
}

struct PlacedCase {
  char const* what;
  std::vector<Index> shape;
  char const* mesh;
  char const* placements;
  char const* boxes;
};

// The rows are those that torch 2.13 gives: compute_local_shape_and_global_offset, and the shards
// of an arange where a rank has several runs.
TEST(PlacedBoxes, AreThoseOfTorch) {
  for (PlacedCase const& at : std::vector<PlacedCase>{
           {"uneven", {7}, "dp=4", "S(0)", "0:2 2:4 4:6 6:7"},
           {"the last rank is empty", {5}, "dp=4", "S(0)", "0:2 2:4 4:5"},
           {"more ranks than rows", {1}, "dp=4", "S(0)", "0:1"},
           {"replicas once", {4, 2}, "dp=3 tp=2", "R S(0)", "0:2,0:2 2:4,0:2"},
           {"two axes, one dimension", {10}, "pp=3 tp=2", "S(0) S(0)", "0:2 2:4 4:6 6:8 8:9 9:10"},
           {"two dimensions",
            {5, 6},
            "a=2 b=3",
            "S(1) S(0)",
            "0:2,0:3 2:4,0:3 4:5,0:3 0:2,3:6 2:4,3:6 4:5,3:6"},
           {"tp first, then dp inside", {8}, "dp=2 tp=2", "_S(0, 2) S(0)", "0:2 4:6 2:4 6:8"},
           {"the same, uneven", {7}, "dp=2 tp=2", "_S(0, 2) S(0)", "0:2 4:6 2:4 6:7"},
           {"the same, with an empty rank", {3}, "dp=2 tp=2", "_S(0, 2) S(0)", "0:1 2:3 1:2"},
           {"several runs on a rank", {9}, "dp=4", "_S(0, 2)", "0:2 5:6 2:4 6:7 4:5 7:8 8:9"},
           {"a short part reaches further ranks",
            {9},
            "a=4 b=3 c=3",
            "_S(0, 2) _S(0, 2) R",
            "0:1 5:6 1:2 2:3 6:7 3:4 4:5 7:8 8:9"},
           {"three axes",
            {4, 9},
            "a=2 b=2 c=2",
            "S(1) S(1) _S(1, 3)",
            "0:4,0:3 0:4,3:5 0:4,5:7 0:4,7:9"},
           {"a strided shard after a plain one",
            {8},
            "a=2 b=2",
            "S(0) _S(0, 2)",
            "0:1 2:3 1:2 3:4 4:5 6:7 5:6 7:8"},
       })
    EXPECT_EQ(placed(at.shape, at.mesh, at.placements), at.boxes) << at.what;
}

TEST(PlacedBoxes, OfScalarsAndOfTensorsWithoutElementsAreOne) {
  EXPECT_EQ(placed_boxes({}, {}, {}), (std::vector<TensorBox>{{{}, {}}}));
  EXPECT_EQ(placed_boxes({}, parse_mesh("dp=3"), parse_placements("R")),
            (std::vector<TensorBox>{{{}, {}}}));
  EXPECT_EQ(placed({0, 5}, "dp=4", "S(0)"), "0:0,0:5");
  EXPECT_EQ(placed({3, 0}, "dp=2 tp=2", "_S(0, 2) S(0)"), "0:3,0:0");
}

std::string placed_at(std::vector<Index> const& shape, std::vector<Index> const& sizes,
                      std::vector<Index> const& at, std::string_view placements) {
  std::string text;
  for (Share const& rows : placed_rows(shape, sizes, at, parse_placements(placements))) {
    text += text.empty() ? "" : ", ";
    for (Run const& run : rows) text += fmt::format("[{}:{}]", run.begin, run.end);
  }
  return text;
}

// Those of DTensor.full_tensor() in torch 2.13, of what fully_shard makes of a tensor that is cut
// along tp: also where parts are uneven, and placed_boxes() would give row 8 to tp 0.
TEST(PlacedRows, AreThoseOfOneRank) {
  EXPECT_EQ(placed_at({5}, {2}, {1}, "S(0)"), "[3:5]");
  EXPECT_EQ(placed_at({2, 5}, {2, 2}, {1, 1}, "R S(1)"), "[0:2], [3:5]");
  EXPECT_EQ(placed_at({3}, {4}, {3}, "S(0)"), "");
  EXPECT_EQ(placed_at({8}, {2, 2}, {0, 1}, "_S(0, 2) S(0)"), "[4:6]");
  EXPECT_EQ(placed_at({9}, {4, 2}, {3, 0}, "_S(0, 2) S(0)"), "");
  EXPECT_EQ(placed_at({9}, {4, 2}, {3, 1}, "_S(0, 2) S(0)"), "[8:9]");
  EXPECT_EQ(placed_at({8}, {2}, {1}, "_S(0, 2)"), "[2:4][6:8]");
  EXPECT_THROW((void)placed_at({8}, {2}, {1}, "S(1)"), Error);
}

/// The rows of one rank, one by one: parts of equal size, each cut over the ranks.
std::vector<Index> slow_rows(std::vector<Index> const& rows, Placement const& how,
                             std::size_t ranks, std::size_t rank) {
  auto const chunk = [](std::vector<Index> const& all, std::size_t parts, std::size_t part) {
    std::size_t const step = (all.size() + parts - 1) / parts;
    std::vector<Index> taken;
    for (std::size_t i = part * step; i < std::min(all.size(), (part + 1) * step); ++i)
      taken.push_back(all[i]);
    return taken;
  };
  if (how.kind == Placement::Kind::replicate) return rows;
  auto const parts = how.kind == Placement::Kind::shard
                         ? std::size_t{1}
                         : static_cast<std::size_t>(how.split_factor);
  std::vector<Index> result;
  for (std::size_t part = 0; part < parts; ++part)
    for (Index const row : chunk(chunk(rows, parts, part), ranks, rank)) result.push_back(row);
  return result;
}

/// The cells that a rank holds, by its coordinates.
std::vector<std::vector<Index>> slow_rank(std::vector<Index> const& shape,
                                          std::vector<MeshAxis> const& mesh,
                                          std::vector<Placement> const& how,
                                          std::vector<std::size_t> const& at) {
  std::vector<std::vector<Index>> rows(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d)
    for (Index i = 0; i < shape[d]; ++i) rows[d].push_back(i);
  for (std::size_t a = 0; a < mesh.size(); ++a) {
    auto& dimension = rows[static_cast<std::size_t>(how[a].dim)];
    dimension = slow_rows(dimension, how[a], static_cast<std::size_t>(mesh[a].size), at[a]);
  }
  return rows;
}

/// Boxes as runs of neighbouring rows, in order of the ranks, each once.
std::vector<TensorBox> slow_boxes(std::vector<Index> const& shape,
                                  std::vector<MeshAxis> const& mesh,
                                  std::vector<Placement> const& how) {
  std::vector<TensorBox> all;
  std::size_t ranks = 1;
  for (MeshAxis const& axis : mesh) ranks *= static_cast<std::size_t>(axis.size);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::size_t> at(mesh.size());
    std::size_t rest = rank;
    for (std::size_t a = mesh.size(); a-- > 0;) {
      at[a] = rest % static_cast<std::size_t>(mesh[a].size);
      rest /= static_cast<std::size_t>(mesh[a].size);
    }
    std::vector<TensorBox> boxes{{}};
    for (std::vector<Index> const& rows : slow_rank(shape, mesh, how, at)) {
      std::vector<TensorBox> next;
      for (TensorBox const& box : boxes)
        for (std::size_t i = 0; i < rows.size(); ++i) {
          if (i == 0 || rows[i] != rows[i - 1] + 1) {
            next.push_back(box);
            next.back().begin.push_back(rows[i]);
            next.back().end.push_back(rows[i] + 1);
          } else {
            next.back().end.back() = rows[i] + 1;
          }
        }
      boxes = std::move(next);
    }
    for (TensorBox const& box : boxes)
      if (std::find(all.begin(), all.end(), box) == all.end()) all.push_back(box);
  }
  return all;
}

TEST(PlacedBoxes, AgreeWithCountingRowByRow) {
  unsigned const seed = 11;
  std::mt19937 random(seed);
  auto const pick = [&](Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random);
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<Index> shape(static_cast<std::size_t>(pick(1, 3)));
    for (Index& extent : shape) extent = pick(1, 9);
    std::vector<MeshAxis> mesh(static_cast<std::size_t>(pick(1, 3)));
    std::vector<Placement> how;
    for (std::size_t a = 0; a < mesh.size(); ++a) {
      mesh[a] = {fmt::format("a{}", a), pick(1, 5)};
      how.push_back({static_cast<Placement::Kind>(pick(0, 2)),
                     static_cast<int>(pick(0, static_cast<Index>(shape.size()) - 1)), pick(1, 4)});
    }
    ASSERT_EQ(shown(placed_boxes(shape, Mesh(mesh), how)), shown(slow_boxes(shape, mesh, how)))
        << "seed " << seed << ", round " << round;
  }
}

TEST(ParsePlacements, TakesShortFormsAndThoseThatTorchPrints) {
  std::vector<Placement> const expected{{},
                                        {Placement::Kind::shard, 1, 1},
                                        {Placement::Kind::strided_shard, 0, 2},
                                        {Placement::Kind::shard, 12, 1}};
  EXPECT_EQ(parse_placements("R S(1) _S(0, 2) S(12)"), expected);
  EXPECT_EQ(parse_placements("R  S1 _S(0,2) S12 "), expected);
  EXPECT_EQ(parse_placements("Replicate() Shard(dim=1) _StridedShard(dim=0, sf=2) Shard(12)"),
            expected);
  EXPECT_EQ(parse_placements(
                "Replicate() Shard(dim=1) _StridedShard(dim=0, split_factor=2) Shard(dim=12)"),
            expected);
  EXPECT_TRUE(parse_placements(" ").empty());
}

TEST(ParseMesh, TakesNamesAndSizesInOrder) {
  EXPECT_EQ(parse_mesh("dp=4 tp = 2"), Mesh({{"dp", 4}, {"tp", 2}}));
  EXPECT_TRUE(parse_mesh("").axes().empty());
}

TEST(ParsePlacements, ShowTheTextAndTheColumnOfAMistake) {
  for (char const* text : {"P", "S", "S(", "S(0", "S(-1)", "S(x)", "R,R", "RR", "S(0)S(1)", "_S(0)",
                           "_S(0, 0)", "_S(0, 2", "S(99999999999)", "Partial()"}) {
    std::string const sentence = sentence_of([&] { parse_placements(text); });
    EXPECT_NE(sentence.find(fmt::format("'{}'", text)), std::string::npos)
        << text << ": " << sentence;
  }
  EXPECT_NE(sentence_of([] { parse_placements("R S(x)"); }).find("column 5"), std::string::npos);
  EXPECT_NE(
      sentence_of([] { parse_placements(std::string(10'000, 'R')); }).find("10000 characters"),
      std::string::npos);
}

TEST(ParseMesh, ShowsTheTextOfAMistake) {
  for (char const* text :
       {"dp", "dp=", "=2", "dp=0", "dp=-1", "dp=2,tp=2", "dp=2 dp=2", "dp=99999999999999999999"}) {
    std::string const sentence = sentence_of([&] { parse_mesh(text); });
    EXPECT_NE(sentence.find(fmt::format("'{}'", text)), std::string::npos)
        << text << ": " << sentence;
  }
}

TEST(PlacedBoxes, RefusePlacementsThatDoNotFit) {
  auto const refused = [](std::vector<Index> const& shape, char const* mesh, char const* how) {
    return sentence_of([&] { placed(shape, mesh, how); });
  };
  EXPECT_NE(refused({4}, "dp=2 tp=2", "S(0)").find("1 placements for a mesh of 2 axes"),
            std::string::npos);
  EXPECT_NE(refused({4}, "dp=2", "S(0) R").find("2 placements for a mesh of 1 axes"),
            std::string::npos);
  EXPECT_NE(refused({4}, "dp=2", "S(1)").find("'dp' cuts dimension 1 of a tensor of 1"),
            std::string::npos);
  EXPECT_NE(refused({}, "dp=2", "S(0)").find("a tensor of 0 dimensions"), std::string::npos);
  std::vector<Index> const shape = {4};
  std::vector<Placement> const how = {{Placement::Kind::strided_shard, 0, 0}};
  EXPECT_EQ(sentence_of([&] { placed_boxes(shape, parse_mesh("dp=2"), how); }),
            "mesh axis 'dp' cuts after 0 parts; a strided shard needs 1 or more.");
}

TEST(PlacedBoxes, EndBeforeTheyFillTheMemory) {
  Index const huge = Index{1} << 40;
  for (char const* how :
       {"S(0) R", "_S(0, 1099511627776) R", "_S(0, 1048576) R", "_S(0, 1048576) S(0)"}) {
    std::string const sentence =
        sentence_of([&] { placed({huge}, "dp=1000000000 tp=1000000000", how); });
    EXPECT_NE(sentence.find("Choose"), std::string::npos) << how << ": " << sentence;
  }
  EXPECT_NE(sentence_of([&] {
              placed({huge}, "dp=2 tp=2", "_S(0, 1048575) _S(0, 1048576)");
            }).find("strided shards give a rank more than 1048576 runs of rows"),
            std::string::npos);
  EXPECT_EQ(placed({huge}, "dp=1000000000000 tp=2", "R S(0)"),
            "0:549755813888 549755813888:1099511627776");
  EXPECT_EQ(placed({3}, "dp=1000000000000", "S(0)"), "0:1 1:2 2:3");
}

}  // namespace
}  // namespace reshard::test
