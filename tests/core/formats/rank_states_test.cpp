#include "core/formats/megatron/state/rank_states.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/state/rank_settings.hpp"
#include "tests/support/expect_refused.hpp"

namespace reshard::megatron {
namespace {

/// Folders of these places, each with a model file and a distrib_optim.pt; the latter come last.
struct Folders {
  Checkpoint checkpoint;
  std::vector<FileState> files;
  std::vector<std::size_t> shards;

  Folders(MeshSizes const& sizes, std::vector<ShardPlace> const& places) {
    checkpoint.shares.mesh = mesh_of(sizes);
    checkpoint.place = "/ckpt";
    checkpoint.state.inventory.optimizer = {StateForm::in_model_files, "optimizer"};
    for (std::string const file : {"model_optim_rng.pt", "distrib_optim.pt"})
      for (std::size_t s = 0; s < places.size(); ++s) {
        checkpoint.files.push_back("/ckpt/" + std::to_string(s) + "/" + file);
        files.emplace_back();
        shards.push_back(s);
      }
    checkpoint.stamps.taken.resize(files.size());
    for (std::size_t s = 0; s < places.size(); ++s) {
      checkpoint.shares.places.push_back({static_cast<std::uint32_t>(s),
                                          place_of(checkpoint.shares.mesh, places[s]),
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
    FileStates all;
    for (FileState const& file : files) {
      all.number.push_back(all.different.size());
      all.different.push_back(file);
      all.own.push_back({{}, file.torch_steps});
    }
    add_rank_states(checkpoint, all, shards);
    return *checkpoint.state.rank_states;
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
  EXPECT_EQ(folders.checkpoint.state.inventory.optimizer.form, StateForm::in_buffers);
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
  EXPECT_EQ(folders.checkpoint.state.inventory.optimizer.form, StateForm::by_weight);
}

TEST(RankStates, OfMastersAloneAreRefused) {
  Folders folders({.tp = 1}, {{0, 0, 0}});
  FileTensor const master{"fp32_param", DType::f32, {2, 3}, {}, 64, 24};
  folders.files[0].groups.push_back({0, true, false, {{master}}});
  folders.files[0].settings = "settings";
  EXPECT_NE(folders.refused().find("saved before its first step"), std::string::npos);
}

TEST(RankStates, AtDifferentStepsAreRefused) {
  Folders folders({.tp = 2}, {{0, 0, 0}, {1, 0, 0}});
  folders.files[0].torch_steps = 3;
  folders.files[1].torch_steps = 4;
  EXPECT_NE(folders.refused().find("at step 4 here and at 3"), std::string::npos);
}

/// {"optimizer": {"optimizer": {"param_groups": [{"step": …}, …]}}}
pickle::Document common_state(std::vector<int> const& steps) {
  pickle::Document document;
  document.root = document.add_dict();
  std::vector<pickle::NodeId> groups;
  for (int const step : steps) {
    groups.push_back(document.add_dict());
    document.set(groups.back(), "step", document.add_int(step));
  }
  pickle::NodeId const inner = document.add_dict();
  document.set(inner, "param_groups", document.add_list(std::move(groups)));
  pickle::NodeId const outer = document.add_dict();
  document.set(outer, "optimizer", inner);
  document.set(document.root, "optimizer", outer);
  return document;
}

std::string refusal(pickle::Document const& common) {
  auto const error = capture([&] { check_settings(common, "common.pt"); });
  return error ? error->sentence() : "";
}

TEST(Settings, AreThereAndAtOneStep) {
  EXPECT_EQ(refusal(common_state({3, 3})), "");
  EXPECT_NE(refusal(common_state({3, 4})).find("at step 3 in one parameter group and at 4"),
            std::string::npos);
  pickle::Document none;
  none.root = none.add_dict();
  for (pickle::Document const& common : {common_state({}), none})
    EXPECT_NE(refusal(common).find("no settings of an optimizer"), std::string::npos);
}

TEST(RankSettings, OfAnotherNumberOfOptimizersAreRefused) {
  pickle::Document shard;
  shard.root = shard.add_dict();
  shard.set(shard.root, "optimizer", shard.add_dict());
  RunRecord record;
  auto torch = std::make_shared<TorchFile>();
  torch->document = shard;
  record.torch = torch;
  pickle::Document others;
  others.root = others.add_list({others.add_dict(), others.add_dict()});
  auto states = std::make_shared<RankStates>();
  states->settings = {pickle::dump(others)};
  states->places = {"/ckpt/1"};
  Checkpoint source;
  source.state.rank_states = states;
  test::expect_refused(ErrorKind::source,
                       "/ckpt/1: 'optimizer' is of 2 optimizers, and 1 in another rank's file",
                       [&] { rank_settings(source, record); });
}

}  // namespace
}  // namespace reshard::megatron
