// Pickles of ranks' files that say what cannot be: each lie is refused with words that name it.

#include <functional>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/formats/format.hpp"
#include "core/formats/fsdp_ranks/folder.hpp"
#include "tests/core/formats/contents.hpp"
#include "tests/support/sample_fsdp_ranks.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using pickle::Document;
using pickle::NodeId;
using test::RankFileDraft;

class FsdpRankLies : public testing::Test {
 protected:
  FsdpRankLies() { fs::create_directories(folder()); }
  fs::path folder() const { return scratch_.path() / "save"; }

  void write(char const* kind, std::function<void(RankFileDraft&)> const& fill) const {
    RankFileDraft draft;
    draft.document.root = draft.document.add_dict();
    fill(draft);
    draft.write(folder() / fmt::format("{}_world_size_1_rank_0.pt", kind));
  }

  /// A DTensor "w" of two rows on a mesh of one rank.
  static void add_placed(RankFileDraft& draft) {
    NodeId const mesh = draft.add_mesh({1}, 0);
    NodeId const local = draft.add(DType::u8, {2, 1}, std::vector<std::byte>(2));
    draft.document.set(draft.document.root, "w",
                       draft.add_dtensor(local, {2, 1}, mesh, {{Placement::Kind::shard, 0, 1}}));
  }

  void expect_refused(std::string const& part) const {
    auto const error = capture([&] { test::opened(folder()); });
    ASSERT_TRUE(error) << part;
    EXPECT_EQ(error->kind(), ErrorKind::source);
    EXPECT_NE(error->sentence().find(part), std::string::npos)
        << error->sentence() << "\nexpected: " << part;
  }

  ScratchFolder scratch_{"fsdp_rank_lies"};
};

NodeId numbers(Document& document, std::vector<Index> const& values) {
  std::vector<NodeId> items;
  for (Index const value : values) items.push_back(document.add_int(value));
  return document.add_tuple(std::move(items));
}

TEST(FsdpRankNames, AreSpelledAsTheirWritersSpellThem) {
  EXPECT_TRUE(fsdp_ranks::parse_rank_name("model_world_size_4_rank_2.pt"));
  EXPECT_TRUE(fsdp_ranks::parse_rank_name("optim_world_size_10_rank_0.pt"));
  for (char const* other : {"model_world_size_4_rank_02.pt", "model_world_size_04_rank_2.pt",
                            "model_world_size_4_rank_2.pt.tmp", "model_world_size_4_rank_-1.pt"})
    EXPECT_FALSE(fsdp_ranks::parse_rank_name(other)) << other;
}

TEST_F(FsdpRankLies, OfADTensorAreRefused) {
  using States = RankFileDraft::States;
  struct Lie {
    std::function<void(Document&, States const&)> tell;
    char const* part;
  };
  write("model", add_placed);
  EXPECT_FALSE(capture([&] { test::opened(folder()); }));
  for (Lie const &lie : std::vector<Lie>{
           {[](auto&d, auto&s) { d.erase(s.slots, "_spec"); }, "without _local_tensor or _spec"},
           {[](auto&d, auto&s) { d.set(s.slots, "_local_tensor", d.add_none()); },
            "whose local part is no plain tensor"},
           {[](auto&d, auto&s) { d.at(s.arguments).items.resize(1); }, "without a size"},
           {[](auto&d, auto&s) { d.at(s.arguments).items[2] = d.add_none(); },
            "has no list of sizes as its size"},
           {[](auto&d, auto&s) {
              d.at(s.arguments).items[2] = numbers(d, {-2, 1});
            },
            "has no list of sizes as its size"},
           {[](auto&d, auto&s) { d.erase(s.spec, "mesh"); }, "without a mesh"},
           {[](auto&d, auto&s) { d.erase(s.spec, "placements"); }, "without placements"},
           {[](auto&d, auto&s) { d.erase(s.placement, "dim"); },
            "has a placement without a number 'dim'"},
           {[](auto&d, auto&s) {
              NodeId const one = d.add_object("torch.x", "Partial", d.add_dict());
              d.set(s.spec, "placements", d.add_tuple({one}));
            },
            "is Partial: a sum that was not computed"},
           {[](auto&d, auto&s) {
              NodeId const one = d.add_object("torch.x", "Ragged", d.add_dict());
              d.set(s.spec, "placements", d.add_tuple({one}));
            },
            "has the placement torch.x.Ragged, which is not known"},
           {[](auto&d, auto&s) { d.erase(s.mesh, "_layout"); },
            "its mesh has neither 'mesh' nor '_layout'"},
           {[](auto&d, auto&s) { d.set(s.mesh, "_rank_map", d.add_none()); },
            "its mesh has no tensor of ranks"},
           {[](auto&d, auto&s) { d.erase(s.layout, "axes"); },
            "its mesh has a layout without 'axes' and 'shape'"},
           {[](auto&d, auto&s) { d.set(s.layout, "axes", d.add_tuple()); }, "its mesh has 0 axes"},
           {[](auto&d, auto&s) { d.set(s.mesh, "_coordinate_on_dim", numbers(d, {3})); },
            "its mesh places rank 0 at (0), and the rank that saved it was at (3)"},
           {[](auto&d, auto&s) {
              d.erase(s.layout, "axes");
              d.set(s.layout, "shape", numbers(d, {1, 1}));
              d.set(s.layout, "stride", numbers(d, {1}));
            },
            "its mesh has another number of sizes than of strides"},
           {[](auto&d, auto&s) { d.erase(s.axis, "shape"); },
            "its mesh has an axis without sizes or strides"},
           {[](auto&d, auto&s) {
              d.set(s.axis, "stride", numbers(d, {1, 1}));
            },
            "its mesh has an axis of other numbers of sizes and of strides"},
           {[](auto&d, auto&s) { d.set(s.axis, "shape", numbers(d, {0})); },
            "its mesh has a size below 1, or a stride below 0"},
           {[](auto&d, auto&s) {
              d.set(s.axis, "shape", numbers(d, {2}));
              d.set(s.axis, "stride", numbers(d, {0}));
            },
            "its mesh has a stride of 0"},
           {[](auto&d, auto&s) { d.set(s.axis, "shape", numbers(d, {2})); },
            "its mesh has an axis of 2 ranks at a stride of 1, which do not fit in 1"},
       }) {
    SCOPED_TRACE(lie.part);
    write("model", [&](RankFileDraft& draft) {
      add_placed(draft);
      lie.tell(draft.document, draft.states);
    });
    expect_refused(lie.part);
  }
}

TEST_F(FsdpRankLies, OfMeshesOfTorchUntil28AreRefused) {
  auto const with_mesh = [&](DType dtype, std::vector<Index> const& shape, std::size_t bytes) {
    write("model", [&](RankFileDraft& draft) {
      Document& document = draft.document;
      NodeId const state = document.add_dict();
      document.set(state, "mesh", draft.add(dtype, shape, std::vector<std::byte>(bytes)));
      NodeId const mesh = document.add_object("torch.x", "DeviceMesh", state);
      NodeId const local = draft.add(DType::u8, {1}, std::vector<std::byte>(1));
      document.set(document.root, "w",
                   draft.add_dtensor(local, {1}, mesh, {{Placement::Kind::shard, 0, 1}}));
    });
  };
  with_mesh(DType::u8, {1}, 1);
  expect_refused("has a mesh of 1 bytes of U8");
  with_mesh(DType::i64, {}, 8);
  expect_refused("its mesh has 0 axes");
  with_mesh(DType::i32, {1}, 4);
  EXPECT_FALSE(capture([&] { test::opened(folder()); }));
}

TEST_F(FsdpRankLies, OfClassesAndShardedTensorsAreRefused) {
  struct Shard {
    bool held = true, metadata = true, size = true, tensor = true, offsets = true, dtype = true;
    Index at = 0;
  };
  auto const with = [&](char const* type, Shard const& shard) {
    write("model", [&](RankFileDraft& draft) {
      Document& document = draft.document;
      NodeId const place = document.add_dict();
      if (shard.offsets)
        document.set(place, "shard_offsets", document.add_list({document.add_int(shard.at)}));
      NodeId const one = document.add_dict();
      document.set(one, "tensor",
                   shard.tensor ? draft.add(DType::u8, {2}, std::vector<std::byte>(2))
                                : document.add_none());
      document.set(one, "metadata", place);
      NodeId const properties = document.add_dict();
      if (shard.dtype) document.set(properties, "dtype", document.add_global("torch", "uint8"));
      NodeId const metadata = document.add_dict();
      document.set(metadata, "tensor_properties", properties);
      if (shard.size) document.set(metadata, "size", numbers(document, {2}));
      NodeId const state = document.add_dict();
      document.set(state, "_local_shards",
                   shard.held ? document.add_list({one}) : document.add_list());
      if (shard.metadata) document.set(state, "_metadata", metadata);
      NodeId const made = document.add_global("torch._utils", "_rebuild_wrapper_subclass");
      NodeId const class_node = document.add_global("torch.x", type);
      NodeId const size = document.add_tuple({class_node});
      NodeId const all = document.add_tuple({made, class_node, size, state});
      NodeId const rebuild = document.add_global("torch._tensor", "_rebuild_from_type_v2");
      document.set(
          document.root, "w",
          document.add({.kind = pickle::Kind::reduce, .callable = rebuild, .arguments = all}));
    });
  };
  with("ShardedTensor", {});
  EXPECT_FALSE(capture([&] { test::opened(folder()); }));
  with("Float8Tensor", {});
  expect_refused("'w' is a torch.x.Float8Tensor, and not a plain tensor");
  with("ShardedTensor", {.held = false});
  expect_refused("no rank holds any part of 'w', which is U8 (2) as a ShardedTensor");
  with("ShardedTensor", {.metadata = false});
  expect_refused("is a ShardedTensor without shards or metadata");
  with("ShardedTensor", {.size = false});
  expect_refused("is a ShardedTensor without a size");
  with("ShardedTensor", {.tensor = false});
  expect_refused("has a shard that is no plain tensor with metadata");
  with("ShardedTensor", {.offsets = false});
  expect_refused("has a shard without shard_offsets");
  with("ShardedTensor", {.dtype = false});
  expect_refused("is a ShardedTensor without a dtype that is known");
  with("ShardedTensor", {.at = 1});
  expect_refused("has a shard U8 (2) at (1) in U8 (2)");
}

TEST_F(FsdpRankLies, OfAnOptimizerAreRefused) {
  write("model", add_placed);
  auto const with = [&](std::function<void(Document&, NodeId state)> const& fill) {
    write("optim", [&](RankFileDraft& draft) {
      Document& document = draft.document;
      NodeId const state = document.add_dict();
      document.set(document.root, "state", state);
      document.set(document.root, "param_groups", document.add_list());
      fill(document, state);
    });
  };
  with([](Document& document, NodeId) { document.erase(document.root, "param_groups"); });
  expect_refused("has no 'state' and no 'param_groups'");
  with([](Document& document, NodeId state) {
    NodeId const key = document.add_none();
    NodeId const slots = document.add_dict();
    document.at(state).items = {key, slots};
  });
  expect_refused("has a parameter in its state that is neither a number nor a name");
  with([](Document& document, NodeId state) { document.set(state, "w", document.add_int(1)); });
  expect_refused("the state of parameter w is no dict of tensors");
}

}  // namespace
}  // namespace reshard
