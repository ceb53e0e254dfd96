#include "core/layout/mesh.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>
#include <set>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

using Places = std::vector<MeshPlace>;

/// A mesh of up to four axes a, b, c, d of up to four.
Mesh random_mesh(std::mt19937& random) {
  auto const pick = [&](Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random);
  };
  std::vector<MeshAxis> axes;
  Index const count = pick(0, 4);
  for (Index a = 0; a < count; ++a)
    axes.push_back({std::string(1, static_cast<char>('a' + a)), pick(1, 4)});
  return Mesh(std::move(axes));
}

/// Every place, by loops inside loops.
Places counted(Mesh const& mesh) {
  Places places{{}};
  for (MeshAxis const& axis : mesh.axes()) {
    Places next;
    for (MeshPlace const& place : places)
      for (Index at = 0; at < axis.size; ++at) {
        next.push_back(place);
        next.back().push_back(at);
      }
    places = std::move(next);
  }
  return places;
}

TEST(Mesh, PlacesAndNumbersAreThoseOfLoopsInsideLoops) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    Mesh const mesh = random_mesh(random);
    Places const expected = counted(mesh);
    ASSERT_EQ(mesh.places(), std::ssize(expected)) << mesh.text();
    for (Index number = 0; number < mesh.places(); ++number) {
      MeshPlace const place = mesh.place(number);
      ASSERT_EQ(place, expected[static_cast<std::size_t>(number)]) << mesh.text() << " " << number;
      ASSERT_EQ(mesh.number(place), number) << mesh.text();
    }
  }
}

TEST(Mesh, CoordinatesGoByName) {
  Mesh const mesh({{"pp", 2}, {"cp", 3}, {"tp", 4}});
  MeshPlace const place = mesh.at({{"tp", 3}, {"pp", 1}});
  EXPECT_EQ(place, (MeshPlace{1, 0, 3}));
  EXPECT_EQ(mesh.coordinate(place, "tp"), 3);
  EXPECT_EQ(mesh.coordinate(place, "cp"), 0);
  EXPECT_EQ(mesh.coordinate(place, "dp"), 0) << "an axis that the mesh lacks";
  EXPECT_EQ(mesh.coordinate({}, "tp"), 0) << "the first place";
  EXPECT_EQ(mesh.number({}), 0);
  EXPECT_EQ(mesh.at({{"dp", 0}}), (MeshPlace{0, 0, 0}));
  EXPECT_THROW(mesh.at({{"dp", 1}}), Error);
  EXPECT_THROW(mesh.at({{"tp", 4}}), Error);
}

TEST(Mesh, AxesHaveSizesOneWhereTheyAreMissing) {
  Mesh const mesh({{"pp", 2}, {"tp", 4}});
  EXPECT_EQ(mesh.size("pp"), 2);
  EXPECT_EQ(mesh.size("ep"), 1);
  EXPECT_EQ(mesh.find("tp"), 1);
  EXPECT_EQ(mesh.find("ep"), -1);
  EXPECT_EQ(mesh.text(), "pp 2 · tp 4");
  EXPECT_EQ(mesh.text(", "), "pp 2, tp 4");
  EXPECT_EQ(Mesh().places(), 1);
}

TEST(Mesh, RefusesNamesThatStandTwiceAndSizesBelowOne) {
  EXPECT_NE(sentence_of([] { Mesh({{"tp", 0}}); }).find("tp = 0"), std::string::npos);
  EXPECT_NE(sentence_of([] {
              Mesh({{"tp", 2}, {"tp", 2}});
            }).find("'tp' appears twice"),
            std::string::npos);
  Mesh const endless({{"a", Index{1} << 40}, {"b", Index{1} << 40}});
  EXPECT_NE(sentence_of([&] { static_cast<void>(endless.places()); }).find("does not fit"),
            std::string::npos);
}

std::array<MeshGrid, 2> const dense_and_experts = {MeshGrid{"tp"}, MeshGrid{"ep", "etp"}};

Places folded(Index tp, Index ep, Index etp) {
  return folded_places(Mesh({{"tp", tp}, {"ep", ep}, {"etp", etp}}), dense_and_experts);
}

TEST(FoldedPlaces, HaveHolesWhenExpertsAreSplitUnlikeTheRest) {
  EXPECT_EQ(folded(2, 4, 1), (Places{{0, 0, 0}, {0, 2, 0}, {1, 1, 0}, {1, 3, 0}}));
  EXPECT_EQ(folded(2, 2, 2), (Places{{0, 0, 0}, {0, 1, 0}, {1, 0, 1}, {1, 1, 1}}));
  EXPECT_EQ(folded(1, 1, 2), (Places{{0, 0, 0}, {0, 0, 1}}));
  EXPECT_EQ(folded(1, 1, 1), (Places{{0, 0, 0}}));
}

TEST(FoldedPlaces, AreAsManyAsMegatronWritesFiles) {
  EXPECT_EQ(folded(4, 4, 2).size(), 8U);
  EXPECT_EQ(folded(2, 3, 1).size(), 6U);
  EXPECT_EQ(folded(8, 8, 1).size(), 8U);
}

TEST(FoldedPlaces, AreThoseOfRanksCountedOneByOne) {
  std::mt19937 random(5);
  std::array<MeshGrid, 2> const grids = {MeshGrid{"b"}, MeshGrid{"a", "d"}};
  for (int round = 0; round < 500; ++round) {
    Mesh const mesh = random_mesh(random);
    Index const b = mesh.size("b");
    Index const d = mesh.size("d");
    Index const a = mesh.size("a");
    std::set<MeshPlace> expected;
    for (Index c = 0; c < mesh.size("c"); ++c)
      for (Index rank = 0; rank < a * b * d; ++rank) {
        std::vector<MeshCoordinate> const all = {
            {"a", rank / d % a}, {"b", rank % b}, {"c", c}, {"d", rank % d}};
        expected.insert(mesh.at(all));
      }
    ASSERT_EQ(folded_places(mesh, grids), Places(expected.begin(), expected.end()))
        << mesh.text() << ", round " << round;
  }
}

TEST(FoldedPlaces, OfMoreRanksThanAnyMachineHasAreRefused) {
  EXPECT_NE(sentence_of([] { folded(2147483647, 2147483646, 2147483645); }).find("more than"),
            std::string::npos);
  Mesh const wide({{"c", Index{1} << 30}, {"tp", 1}});
  EXPECT_NE(sentence_of([&] { folded_places(wide, dense_and_experts); }).find("more than"),
            std::string::npos);
}

}  // namespace
}  // namespace reshard::test
