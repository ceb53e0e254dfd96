#include "core/formats/megatron/rank_states.hpp"

#include <gtest/gtest.h>

#include "core/formats/megatron/mesh.hpp"

namespace reshard::megatron {
namespace {

/// Folders of these places, each with a model file and a distrib_optim.pt; the latter come last.
struct Folders {
  Checkpoint checkpoint;
  std::vector<FileState> files;
  std::vector<std::size_t> shards;

  Folders(MeshSizes const& sizes, std::vector<ShardPlace> const& places) {
    checkpoint.mesh = mesh_of(sizes);
    checkpoint.place = "/ckpt";
    checkpoint.state.optimizer = {StateForm::in_model_files, "optimizer"};
    for (std::string const file : {"model_optim_rng.pt", "distrib_optim.pt"})
      for (std::size_t s = 0; s < places.size(); ++s) {
        checkpoint.files.push_back("/ckpt/" + std::to_string(s) + "/" + file);
        files.emplace_back();
        shards.push_back(s);
      }
    checkpoint.stamps.resize(files.size());
    for (std::size_t s = 0; s < places.size(); ++s) {
      checkpoint.places.push_back({static_cast<std::uint32_t>(s),
                                   place_of(checkpoint.mesh, places[s]),
                                   {},
                                   0,
                                   0,
                                   "",
                                   0,
                                   0});
      files[s].settings = "settings";
    }
  }

  /// Of shard `shard`.
  void add_buffer(std::size_t shard, Index chain, std::vector<std::string> const& slots) {
    StateBuffer buffer{chain, 0, "bfloat16", {}};
    for (std::string const& slot : slots)
      buffer.states.push_back({slot, DType::f32, {8}, {}, 64, 32});
    files[files.size() / 2 + shard].buffers.push_back(buffer);
  }

  RankStates const& added() {
    add_rank_states(checkpoint, std::move(files), shards);
    return *checkpoint.rank_states;
  }

  std::string refused() {
    try {
      added();
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      return error.sentence();
    }
    ADD_FAILURE() << "expected an Error";
    return "";
  }
};

std::vector<std::string> const adam{"param", "exp_avg", "exp_avg_sq"};

TEST(RankStates, BuffersAreOfTheGroupsOfTheirFolders) {
  Folders folders({.tp = 2, .pp = 2, .vpp = 1, .ep = 2, .etp = 1},
                  {{0, 0, 0}, {1, 0, 1}, {0, 1, 0}, {1, 1, 1}});
  for (std::size_t shard = 0; shard < 4; ++shard) {
    folders.add_buffer(shard, 1, adam);
    folders.add_buffer(shard, 0, adam);
  }
  RankStates const& states = folders.added();
  EXPECT_TRUE(states.distributed);
  EXPECT_EQ(states.slots, adam);
  ASSERT_EQ(states.buffers.size(), 8U);
  for (std::size_t b = 0; b < 8; ++b) {
    EXPECT_EQ(states.buffers[b].chain, static_cast<Index>(b / 4)) << "sorted: " << b;
    EXPECT_EQ(states.buffers[b].group, static_cast<Index>(b % 4));
    EXPECT_TRUE(states.buffers[b].joined);
  }
  EXPECT_EQ(folders.checkpoint.stored.tensors.size(), 24U);
  EXPECT_EQ(folders.checkpoint.state.optimizer.form, StateForm::in_buffers);
}

TEST(RankStates, ALostFileOfDenseWeightsIsNamedByItsRank) {
  Folders folders({.tp = 2, .pp = 2}, {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {1, 1, 0}});
  for (std::size_t const shard : {0U, 1U, 2U}) folders.add_buffer(shard, 0, adam);
  EXPECT_NE(folders.refused().find("tensor rank 1 in pipeline rank 1"), std::string::npos);
}

TEST(RankStates, BuffersWithoutASlotOfOthersAreRefused) {
  Folders folders({.tp = 2}, {{0, 0, 0}, {1, 0, 0}});
  folders.add_buffer(0, 0, adam);
  folders.add_buffer(1, 0, {"param", "exp_avg"});
  EXPECT_NE(folders.refused().find("/ckpt/1/distrib_optim.pt: a buffer lacks 'exp_avg_sq'"),
            std::string::npos);
}

TEST(RankStates, SettingsWithoutStateAreRefused) {
  Folders folders({.tp = 1}, {{0, 0, 0}});
  EXPECT_NE(folders.refused().find("has settings and no state"), std::string::npos);
}

TEST(RankStates, StateInModelFilesMayLackSlots) {
  Folders folders({.tp = 1}, {{0, 0, 0}});
  FileTensor const moment{"exp_avg", DType::f32, {2, 3}, {}, 64, 24};
  folders.files[0].groups.push_back({0, true, false, {{}, {moment}}});
  folders.files[0].groups.push_back({0, false, false, {{moment}}});
  RankStates const& states = folders.added();
  EXPECT_FALSE(states.distributed);
  ASSERT_EQ(states.lists.size(), 1U);
  ASSERT_EQ(states.lists[0].groups.size(), 2U);
  EXPECT_EQ(states.lists[0].groups[0].members,
            (std::vector<std::vector<std::size_t>>{{no_tensor}, {0}}));
  EXPECT_EQ(folders.checkpoint.state.optimizer.form, StateForm::by_weight);
}

}  // namespace
}  // namespace reshard::megatron
