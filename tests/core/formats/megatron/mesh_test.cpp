#include "core/formats/megatron/mcore/mesh.hpp"

#include <gtest/gtest.h>

#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

using Sizes = std::map<std::string, int, std::less<>>;

TEST(MegatronMesh, HasTheUsualAxesWithTheirDefaults) {
  EXPECT_EQ(mesh_of(Sizes{{"tp", 4}}).text(), "tp 4 · pp 1 · vpp 1 · ep 1 · etp 4");
  EXPECT_EQ(mesh_of(Sizes{{"tp", 4}, {"etp", 0}}).size("etp"), 4);
  EXPECT_EQ(mesh_of(Sizes{{"tp", 4}, {"etp", 2}}).size("etp"), 2);
  MeshSizes const sizes{2, 3, 4, 5, 1};
  EXPECT_EQ(sizes_of(mesh_of(sizes)), sizes);
  EXPECT_EQ(sizes_of(Mesh()), MeshSizes()) << "no mesh is one rank";
}

TEST(MegatronMesh, FurtherAxesStandBehindAndAreIndependent) {
  Mesh const mesh = mesh_of(Sizes{{"tp", 2}, {"cp", 2}, {"bp", 3}, {"ep", 2}, {"etp", 1}});
  EXPECT_EQ(mesh.text(), "tp 2 · pp 1 · vpp 1 · ep 2 · etp 1 · bp 3 · cp 2");
  std::vector<MeshPlace> expected;
  for (Index bp = 0; bp < 3; ++bp)
    for (Index cp = 0; cp < 2; ++cp)
      for (Index tp = 0; tp < 2; ++tp)
        expected.push_back(mesh.at({{"bp", bp}, {"cp", cp}, {"tp", tp}, {"ep", tp}}));
  EXPECT_EQ(stage_places(mesh), expected);
}

TEST(MegatronMesh, ShardsAreThoseOfRanks) {
  EXPECT_EQ(
      shard_places({2, 2, 1, 4, 1}),
      (std::vector<ShardPlace>{
          {0, 0, 0}, {0, 0, 2}, {1, 0, 1}, {1, 0, 3}, {0, 1, 0}, {0, 1, 2}, {1, 1, 1}, {1, 1, 3}}));
  EXPECT_EQ(shard_places({2, 1, 1, 1, 4}), (std::vector<ShardPlace>{{0, 0, 0}, {1, 0, 0}}))
      << "names do not tell the expert tensor ranks apart";
}

TEST(MegatronMesh, AShardStandsWhereItsNumbersSay) {
  Mesh const mesh = mesh_of(MeshSizes{4, 2, 1, 3, 2});
  EXPECT_EQ(place_of(mesh, {.tp = 3, .pp = 1, .ep = 2}),
            mesh.at({{"tp", 3}, {"pp", 1}, {"ep", 2}, {"etp", 1}}));
}

TEST(MegatronMesh, ShardNamesHaveNoNumberForAFurtherAxis) {
  EXPECT_EQ(shard_sizes(mesh_of(Sizes{{"tp", 2}, {"cp", 1}})), (MeshSizes{2, 1, 1, 1, 2}));
  try {
    shard_sizes(mesh_of(Sizes{{"tp", 2}, {"cp", 2}}));
    FAIL() << "a further axis was taken";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_TRUE(contains(error.sentence(), "cp = 2")) << error.sentence();
    EXPECT_TRUE(contains(error.sentence(), "torch_dist")) << error.sentence();
  }
}

TEST(MegatronMesh, TextsSayWhatIsNotTheUsual) {
  EXPECT_EQ(layout_text({2, 3, 1, 4, 2}), "tp 2 · pp 3 · ep 4");
  EXPECT_EQ(layout_text({2, 3, 2, 4, 1}), "tp 2 · pp 3 · ep 4 · vpp 2 · etp 1");
}

}  // namespace
}  // namespace reshard::megatron
