// Files of ranks that do not fit together, and pickles that lie: each is refused with both values.

#include <functional>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/formats/format.hpp"
#include "core/formats/run/torch_optimizer.hpp"
#include "tests/core/formats/contents.hpp"
#include "tests/support/sample_fsdp_ranks.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using pickle::Document;
using pickle::NodeId;
using test::RankFileDraft;

constexpr Placement replicate{};
constexpr Placement rows{Placement::Kind::shard, 0, 1};

Placement strided(Index parts) { return {Placement::Kind::strided_shard, 0, parts}; }

class FsdpRanks : public testing::Test {
 protected:
  FsdpRanks() { fs::create_directories(folder()); }
  fs::path folder() const { return scratch_.path() / "save"; }
  fs::path file(Index rank, Index world, char const* kind = "model") const {
    return folder() / fmt::format("{}_world_size_{}_rank_{}.pt", kind, world, rank);
  }

  using Values = std::function<void(RankFileDraft& draft, Index rank)>;
  void write(Index world, Values const& fill, char const* kind = "model") const {
    for (Index rank = 0; rank < world; ++rank) {
      RankFileDraft draft;
      draft.document.root = draft.document.add_dict();
      fill(draft, rank);
      draft.write(file(rank, world, kind));
    }
  }

  /// U8 rows of a matrix of one column: those that the rank holds.
  static NodeId column(RankFileDraft& draft, std::vector<Index> const& held) {
    std::vector<std::byte> bytes;
    for (Index const row : held) bytes.push_back(static_cast<std::byte>(row));
    return draft.add(DType::u8, {std::ssize(held), 1}, std::move(bytes));
  }
  static void put(RankFileDraft& draft, std::string_view name, NodeId value) {
    draft.document.set(draft.document.root, name, value);
  }

  /// A matrix of `count` rows, each of which holds its number.
  void expect_rows(std::string const& name, Index count) const {
    std::vector<std::byte> bytes;
    for (Index row = 0; row < count; ++row) bytes.push_back(static_cast<std::byte>(row));
    auto const found = test::contents(test::opened(folder()));
    ASSERT_TRUE(found.contains(name));
    EXPECT_EQ(found.at(name).shape, (std::vector<Index>{count, 1}));
    EXPECT_EQ(found.at(name).bytes, bytes);
  }

  void expect_refused(std::string const& part) const {
    auto const error = capture([&] { test::opened(folder()); });
    ASSERT_TRUE(error) << part;
    EXPECT_EQ(error->kind(), ErrorKind::source);
    EXPECT_NE(error->sentence().find(part), std::string::npos) << error->sentence();
  }

  ScratchFolder scratch_{"fsdp_ranks"};
};

/// One tensor "w" of `rows_of[rank]`, as `placements` of a mesh.
struct PlacedFile {
  std::vector<Index> mesh;
  std::vector<Placement> placements;
  std::vector<std::vector<Index>> rows_of;
  bool old = false;
};

class FsdpRanksPlaced : public FsdpRanks {
 protected:
  void write(PlacedFile const& one, Index count) const {
    FsdpRanks::write(std::ssize(one.rows_of), [&](RankFileDraft& draft, Index rank) {
      NodeId const mesh = one.old ? draft.add_old_mesh(one.mesh) : draft.add_mesh(one.mesh, rank);
      NodeId const local = column(draft, one.rows_of[static_cast<std::size_t>(rank)]);
      put(draft, "w", draft.add_dtensor(local, {count, 1}, mesh, one.placements));
    });
  }
};

TEST_F(FsdpRanksPlaced, RowsOfEveryMeshAreJoined) {
  struct Case {
    char const* what;
    Index count;
    PlacedFile file;
  };
  for (Case const& one : std::vector<Case>{
           {"uneven", 5, {{2}, {rows}, {{0, 1, 2}, {3, 4}}}},
           {"an empty rank", 2, {{3}, {rows}, {{0}, {1}, {}}}},
           {"as torch 2.8 saves meshes", 3, {{2}, {rows}, {{0, 1}, {2}}, true}},
           {"replicas", 3, {{2, 2}, {replicate, rows}, {{0, 1}, {2}, {0, 1}, {2}}}},
           {"replicas inside", 3, {{2, 2}, {rows, replicate}, {{0, 1}, {0, 1}, {2}, {2}}}},
           {"everywhere", 2, {{2}, {replicate}, {{0, 1}, {0, 1}}}},
           {"tp first, then fsdp",
            8,
            {{2, 2}, {strided(2), rows}, {{0, 1}, {4, 5}, {2, 3}, {6, 7}}}},
           {"several runs on a rank", 8, {{2}, {strided(2)}, {{0, 1, 4, 5}, {2, 3, 6, 7}}}},
           // As fully_shard cuts: the shards of tp are [0, 5) and [5, 9), and fsdp cuts each in 4.
           {"tp first, uneven",
            9,
            {{4, 2}, {strided(2), rows}, {{0, 1}, {5}, {2, 3}, {6}, {4}, {7}, {}, {8}}}},
       }) {
    SCOPED_TRACE(one.what);
    fs::remove_all(folder());
    fs::create_directories(folder());
    write(one.file, one.count);
    expect_rows("w", one.count);
  }
}

TEST_F(FsdpRanksPlaced, ARankWithOtherRowsIsRefused) {
  write({{2}, {rows}, {{0, 1}, {2, 3}}}, 5);
  expect_refused(
      "'w' has the local shape (2, 1), and as U8 (5, 1) placed S(0) on a mesh of (2) "
      "rank 0 at (0) holds (3, 1)");
}

TEST_F(FsdpRanksPlaced, APlaceOfTheMeshWithoutARankIsRefused) {
  write({{4}, {rows}, {{0, 1}, {2, 3}}}, 8);
  expect_refused("no file holds the part of 'w' at axis 0 2 of its mesh of (4)");
}

TEST_F(FsdpRanksPlaced, ARankThatTheMeshLacksIsRefused) {
  write({{1}, {rows}, {{0, 1}, {2, 3}}, true}, 2);
  expect_refused("rank_1.pt: 'w': its mesh has no rank 1");
}

TEST_F(FsdpRanksPlaced, PlacementsThatCannotBeAreRefused) {
  write({{2}, {rows, rows}, {{0}, {1}}}, 2);
  expect_refused("'w' has 2 placements on a mesh of 1 axes");
  write({{2}, {{Placement::Kind::shard, 2, 1}}, {{0}, {1}}}, 2);
  expect_refused("'w' is cut along dimension 2 of 2");
  write({{2}, {strided(1 << 20)}, {{0}, {1}}}, 2);
  expect_refused("'w' is cut by a strided shard of 1048576 parts");
}

TEST_F(FsdpRanks, RanksThatDisagreeAreRefused) {
  write(2, [](RankFileDraft& draft, Index rank) {
    NodeId const mesh = draft.add_mesh({2}, rank);
    NodeId const local = column(draft, {0});
    put(draft, "w", draft.add_dtensor(local, {rank == 0 ? 2 : 1, 1}, mesh, {rows}));
  });
  expect_refused("'w' is U8 (1, 1) placed S(0) on a mesh of (2) here, and U8 (2, 1) placed S(0)");
  write(2, [](RankFileDraft& draft, Index rank) {
    put(draft, "w", column(draft, rank == 0 ? std::vector<Index>{0} : std::vector<Index>{0, 1}));
  });
  expect_refused("'w' is U8 (2, 1) as a plain tensor here, and U8 (1, 1) as a plain tensor in");
}

TEST_F(FsdpRanks, AFileUnderTheNameOfAnotherRankIsRefused) {
  write(2, [](RankFileDraft& draft, Index rank) {
    NodeId const mesh = draft.add_mesh({2}, rank);
    put(draft, "w", draft.add_dtensor(column(draft, {rank}), {2, 1}, mesh, {rows}));
  });
  fs::copy_file(file(0, 2), file(1, 2), fs::copy_options::overwrite_existing);
  expect_refused("was saved as model_world_size_2_rank_0.pt, by the name in its archive");
  RankFileDraft draft;
  draft.document.root = draft.document.add_dict();
  NodeId const mesh = draft.add_mesh({2}, 0);
  put(draft, "w", draft.add_dtensor(column(draft, {0}), {2, 1}, mesh, {rows}));
  draft.write(file(1, 2), "archive");
  expect_refused("was saved by rank 0, and the file is of rank 1 by its name");
}

TEST_F(FsdpRanks, FoldersThatAreNotOfOneSaveAreRefused) {
  auto const one = [](RankFileDraft& draft, Index) { put(draft, "w", column(draft, {0})); };
  write(4, one);
  fs::remove(file(1, 4));
  fs::remove(file(3, 4));
  expect_refused("the model file of rank 1, 3 of 4 is missing; 2 are there");
  write(4, one);
  write(2, one);
  expect_refused("its files of the model are of worlds of 2 and of 4 ranks");
  for (Index rank = 0; rank < 4; ++rank) fs::remove(file(rank, 4));
  write_text_file(folder() / "fsdp_config.json", "{\"world_size\": 8}");
  expect_refused("world_size is 8, and the files are of a world of 2");
  fs::remove(folder() / "fsdp_config.json");
  fs::copy_file(file(1, 2), file(2, 2));
  expect_refused("is of rank 2 by its name, in a world of 2, whose last rank is 1");
  fs::remove(file(2, 2));
  write(1, one, "optim");
  expect_refused("the model is of a world of 2 and the optimizer of one of 1");
  fs::remove(file(0, 2));
  fs::remove(file(1, 2));
  expect_refused("holds optimizer state of 1 rank and no model_world_size_*.pt");
}

TEST_F(FsdpRanks, ValuesThatAreNoTensorsAreNamedOrRefused) {
  auto const fill = [](char const* module, char const* function) {
    return [=](RankFileDraft& draft, Index) {
      Document& document = draft.document;
      put(draft, "w", column(draft, {0}));
      put(draft, "_extra", document.add_string("text"));
      if (module == nullptr) return;
      NodeId const call = document.add_global(module, function);
      NodeId const arguments = document.add_tuple({});
      put(draft, "q",
          document.add({.kind = pickle::Kind::reduce, .callable = call, .arguments = arguments}));
    };
  };
  write(1, fill(nullptr, nullptr));
  EXPECT_EQ(test::opened(folder()).state.inventory.others, std::vector<std::string>{"_extra"});
  write(1, fill("torch._utils", "_rebuild_sparse_tensor"));
  expect_refused("'q' is made by torch._utils._rebuild_sparse_tensor");
  write(1, fill("torch._tensor", "_rebuild_from_type_v2"));
  expect_refused("'q' is not described by a class and its state");
  write(1, [](RankFileDraft& draft, Index) { draft.document.root = draft.document.add_list(); });
  expect_refused("holds no dict of tensors");
  write(1, [](RankFileDraft&, Index) {});
  expect_refused("holds no tensor. Restore it");
}

TEST_F(FsdpRanks, ReplicasThatDifferAreRefused) {
  write(2, [](RankFileDraft& draft, Index rank) { put(draft, "w", column(draft, {rank})); });
  expect_refused("and the two must hold the same values: it is U8 (1, 1) as a plain tensor");
  OpenChoice choice;
  choice.compare_files = false;
  EXPECT_FALSE(
      capture([&] { open_checkpoint(folder(), FormatId::automatic, choice, LoneReader()); }));
}

// --- the optimizer
// ---------------------------------------------------------------------------------------------

class FsdpRanksOptimizer : public FsdpRanks {
 protected:
  /// A model of w (4, 1) and v (2, 1) on one rank, and state of each number's shape.
  void write(std::vector<Index> const& shapes, std::vector<std::vector<Index>> const& groups,
             std::vector<std::string> const& names = {}) const {
    FsdpRanks::write(1, [](RankFileDraft& draft, Index) {
      put(draft, "w", column(draft, {0, 1, 2, 3}));
      put(draft, "v", column(draft, {0, 1}));
    });
    FsdpRanks::write(
        1,
        [&](RankFileDraft& draft, Index) {
          Document& document = draft.document;
          NodeId const state = document.add_dict();
          for (std::size_t i = 0; i < shapes.size(); ++i) {
            NodeId const slots = document.add_dict();
            document.set(slots, "exp_avg",
                         column(draft, std::vector<Index>(static_cast<std::size_t>(shapes[i]))));
            document.set(slots, "step", document.add_int(steps_[i]));
            NodeId const number = document.add_int(static_cast<std::int64_t>(i));
            document.at(state).items.push_back(number);
            document.at(state).items.push_back(slots);
          }
          std::vector<NodeId> list;
          for (auto const& members : groups) {
            NodeId const group = document.add_dict();
            std::vector<NodeId> numbers;
            for (Index const one : members) numbers.push_back(document.add_int(one));
            document.set(group, "lr", document.add_real(0.5));
            document.set(group, "params", document.add_list(std::move(numbers)));
            std::vector<NodeId> words;
            for (std::string const& name : names) words.push_back(document.add_string(name));
            if (!names.empty())
              document.set(group, "param_names", document.add_list(std::move(words)));
            list.push_back(group);
          }
          put(draft, "state", state);
          put(draft, "param_groups", document.add_list(std::move(list)));
        },
        "optim");
  }
  HeldState held() const {
    Checkpoint const checkpoint = test::opened(folder());
    return checkpoint.format->inventory(checkpoint, view_of(checkpoint)).optimizer;
  }

  std::vector<Index> steps_{3, 3};
};

TEST_F(FsdpRanksOptimizer, NumbersFollowTheModel) {
  write({4, 2}, {{0, 1}});
  EXPECT_EQ(held().form, StateForm::by_weight);
  Checkpoint const checkpoint = test::opened(folder());
  EXPECT_EQ(checkpoint.state.torch_optimizer->members,
            (std::vector<std::vector<std::string>>{{"w", "v"}}));
  EXPECT_EQ(checkpoint.state.torch_optimizer->steps, 3);
  EXPECT_TRUE(test::contents(checkpoint).contains("optimizer.state.v.exp_avg"));
  write({2, 4}, {{0, 1}}, {"v", "w"});
  EXPECT_EQ(held().form, StateForm::by_weight);
}

TEST_F(FsdpRanksOptimizer, WhatIsNotKnownIsNamed) {
  auto const expect_fault = [&](std::string const& part) {
    HeldState const state = held();
    EXPECT_EQ(state.form, StateForm::by_layout);
    EXPECT_NE(state.fault.find(part), std::string::npos) << state.fault;
  };
  write({2, 4}, {{0, 1}});
  expect_fault("'0.exp_avg' is (2, 1), and 'w', whose state it is by its place, is (4, 1)");
  write({4, 2}, {{0, 1, 2}});
  expect_fault("it has 3 parameters under numbers, and the model 2 weights");
  write({4, 2}, {{0}, {1}});
  expect_fault("its parameters are under numbers, in 2 groups");
  write({4, 2}, {{0, 1}}, {"w", "x"});
  expect_fault("'1.exp_avg' is state of 'x', which the model does not have");
  steps_ = {3, 3, 3};
  write({4, 2, 2}, {{0, 1}});
  expect_fault("'2.exp_avg' is state of a parameter that no group has");
}

/// FSDP1 wrapped two blocks of two rows, and around them three rows, which it pads to four.
TEST_F(FsdpRanks, FlatVectorsOfBlocksAreTakenApart) {
  FsdpRanks::write(2, [](RankFileDraft& draft, Index rank) {
    NodeId const mesh = draft.add_mesh({2}, rank);
    auto const add = [&](char const* name, std::vector<Index> const& held, Index count) {
      put(draft, name, draft.add_dtensor(column(draft, held), {count, 1}, mesh, {rows}));
    };
    add("b.0.w", {rank}, 2);
    add("b.1.w", {rank}, 2);
    add("e", rank == 0 ? std::vector<Index>{0, 1} : std::vector<Index>{2}, 3);
  });
  auto const write_states = [&](bool all, Index extra) {
    FsdpRanks::write(
        2,
        [=](RankFileDraft& draft, Index rank) {
          Document& document = draft.document;
          NodeId const state = document.add_dict();
          std::vector<NodeId> list;
          for (Index key = 0; key < 3; ++key) {
            Index const size = key == 0 ? 2 + extra : 1;
            std::vector<std::byte> bytes;
            for (Index i = 0; i < size; ++i)
              bytes.push_back(static_cast<std::byte>(rank * size + i));
            NodeId const slots = document.add_dict();
            document.set(slots, "exp_avg", draft.add(DType::u8, {size}, bytes));
            if (all || rank == 0 || key != 2)
              document.set(slots, "exp_avg_sq", draft.add(DType::u8, {size}, bytes));
            NodeId const number = document.add_int(key);
            document.at(state).items.push_back(number);
            document.at(state).items.push_back(slots);
            list.push_back(number);
          }
          NodeId const group = document.add_dict();
          document.set(group, "params", document.add_list(std::move(list)));
          put(draft, "state", state);
          put(draft, "param_groups", document.add_list({group}));
        },
        "optim");
  };
  write_states(true, 0);
  expect_rows("optimizer.state.e.exp_avg", 3);
  expect_rows("optimizer.state.b.0.w.exp_avg_sq", 2);
  expect_rows("optimizer.state.b.1.w.exp_avg", 2);
  write_states(false, 0);
  expect_refused("holds no 1 elements of 'exp_avg_sq' for b.1.w");
  write_states(true, 1);
  EXPECT_NE(test::opened(folder()).state.inventory.optimizer.fault.find("is in flat vectors"),
            std::string::npos);
}

TEST_F(FsdpRanks, StepsOfAnotherSaveAreRefused) {
  write(2, [](RankFileDraft& draft, Index) { put(draft, "w", column(draft, {0})); });
  write(
      2,
      [](RankFileDraft& draft, Index rank) {
        Document& document = draft.document;
        NodeId const slots = document.add_dict();
        document.set(slots, "step", document.add_int(3 + rank));
        NodeId const state = document.add_dict();
        document.set(state, "w", slots);
        put(draft, "state", state);
        put(draft, "param_groups", document.add_list());
      },
      "optim");
  expect_refused("its optimizer has done 4 steps, and that of");
}

TEST_F(FsdpRanksOptimizer, StepsThatDifferAreNamed) {
  steps_ = {3, 4};
  write({4, 2}, {{0, 1}});
  EXPECT_NE(test::opened(folder()).state.torch_optimizer->fault.find(
                "parameter 0 has done 3 steps and parameter 1 4"),
            std::string::npos);
}

}  // namespace
}  // namespace reshard
