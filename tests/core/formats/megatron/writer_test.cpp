#include "core/formats/megatron/writer.hpp"

#include <gtest/gtest.h>

#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/headers/shard.hpp"
#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::NodeId;

ChunkEntry tensor(std::string name, DType dtype, std::vector<Index> shape) {
  return {.name = std::move(name),
          .kind = ChunkEntry::Kind::tensor,
          .dtype = dtype,
          .shape = std::move(shape)};
}
ChunkEntry extra(std::string name, ChunkEntry::Kind kind) {
  return {.name = std::move(name), .kind = kind, .dtype = DType::u8, .shape = {}};
}

ShardContent two_chunks() {
  ShardContent content;
  content.args = {{"num_layers", Json(2)}, {"params_dtype", Json("torch.bfloat16")}};
  content.iteration = 42;
  content.chunks = {
      {tensor("embedding.word_embeddings.weight", DType::bf16, {8, 4}),
       extra("a._extra_state", ChunkEntry::Kind::none),
       extra("b._extra_state", ChunkEntry::Kind::empty_uint8), tensor("b.weight", DType::f32, {})},
      {tensor("c.weight", DType::f32, {0, 3}), tensor("c._extra_state", DType::u8, {5})}};
  return content;
}

TEST(BuildShard, TensorsAreInTheOrderOfTheEntries) {
  auto const built = build_shard(two_chunks());
  EXPECT_EQ(built.tensors, (std::vector<EntryPlace>{{0, 0}, {0, 2}, {0, 3}, {1, 0}, {1, 1}}));
  ASSERT_EQ(built.document.tensors.size(), built.tensors.size());
  EXPECT_EQ(built.document.tensors[0].shape, (std::vector<Index>{8, 4}));
  EXPECT_EQ(built.document.tensors[1].dtype, DType::u8);
  EXPECT_EQ(built.document.tensors[2].dtype, DType::f32);
}

TEST(BuildShard, WhatIsWrittenIsRead) {
  TempDirectory const root;
  auto const path = root.path() / "mp_rank_00" / model_file_name;
  write_torch_file(path, build_shard(two_chunks()).document);
  auto const header = read_shard_header(File::open_for_reading(path));
  EXPECT_EQ(header.args.dump(), R"({"num_layers": 2, "params_dtype": "torch.bfloat16"})");
  EXPECT_EQ(header.iteration, 42);
  EXPECT_EQ(header.checkpoint_version, 3.0);
  EXPECT_FALSE(header.has_optimizer);
  EXPECT_FALSE(header.has_rng);
  EXPECT_TRUE(header.other_keys.empty());
  EXPECT_TRUE(header.unplaced.empty());
  ASSERT_EQ(header.chunks.size(), 2U);
  ASSERT_EQ(header.chunks[0].tensors.size(), 2U);
  EXPECT_EQ(header.chunks[0].tensors[0].name, "embedding.word_embeddings.weight");
  EXPECT_EQ(header.chunks[0].tensors[0].size_bytes, 64U);
  ASSERT_EQ(header.chunks[0].extras.size(), 2U);
  EXPECT_EQ(header.chunks[0].extras[0].kind, ExtraKind::none);
  EXPECT_EQ(header.chunks[0].extras[0].tensors_before, 1U);
  EXPECT_EQ(header.chunks[0].extras[1].kind, ExtraKind::uint8_tensor);
  EXPECT_EQ(header.chunks[0].extras[1].size_bytes, 0U);
  ASSERT_EQ(header.chunks[1].tensors.size(), 1U);
  EXPECT_EQ(header.chunks[1].extras[0].size_bytes, 5U);
}

TEST(BuildShard, StorageIHoldsTheBytesOfEntryI) {
  TempDirectory const root;
  auto const path = root.path() / model_file_name;
  auto built = build_shard(two_chunks());
  auto const plan = plan_torch_file(built.document, model_archive_name);
  ASSERT_EQ(plan.storages.size(), built.tensors.size());
  write_torch_file(path, built.document);  // fills storage i with bytes i + 1
  auto const file = File::open_for_reading(path);
  auto const header = read_shard_header(file);
  auto const first_byte = [&](FileTensor const& of) {
    std::array<std::byte, 1> byte{};
    file.read_at(of.offset_bytes, byte);
    return std::to_integer<int>(byte[0]);
  };
  EXPECT_EQ(first_byte(header.chunks[0].tensors[0]), 1);
  EXPECT_EQ(first_byte(header.chunks[0].tensors[1]), 3);
  EXPECT_EQ(first_byte(header.chunks[1].extras[0].tensor), 5);
}

Document source_document() {
  Document source;
  source.root = source.add_dict();
  NodeId const args =
      add_namespace(source, {{"tensor_model_parallel_size", Json(4)}, {"seed", Json(7)}});
  source.set(
      args, "opaque",
      source.add_object("megatron.core.rerun_state_machine", "RerunMode", source.add_dict()));
  source.set(source.root, "args", args);
  NodeId const scheduler = source.add_dict();
  source.set(scheduler, "max_lr", source.add_real(0.001));
  source.set(source.root, "opt_param_scheduler", scheduler);
  source.set(source.root, "num_floating_point_operations_so_far", source.add_int(123));
  source.set(source.root, "rng_state", source.add_list());
  return source;
}

TEST(BuildShard, KeepsTheArgsOfTheSourceButForTheEdits) {
  auto const source = source_document();
  ShardContent content;
  content.source = &source;
  content.args = {{"tensor_model_parallel_size", Json(2)}, {"ckpt_format", Json("torch")}};
  content.chunks = {{}};
  content.carried = carried_values(source);
  auto const built = build_shard(content);
  auto const& document = built.document;
  NodeId const args = find_args(document);
  EXPECT_EQ(args_as_json(document, args).dump(),
            R"({"tensor_model_parallel_size": 2, "seed": 7, "ckpt_format": "torch"})");
  EXPECT_EQ(document.class_of(document.find(args, "opaque")).second, "RerunMode");
  std::vector<std::string> keys;
  for (auto const& [key, node] : document.members(document.root)) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"args", "checkpoint_version", "iteration", "model",
                                            "opt_param_scheduler",
                                            "num_floating_point_operations_so_far"}));
  EXPECT_EQ(document.class_of(document.find(document.root, "model")).second, "OrderedDict");
}

TEST(BuildShard, CopiesOpaqueExtraState) {
  auto const source = source_document();
  ShardContent content;
  content.chunks = {{{.name = "a._extra_state",
                      .kind = ChunkEntry::Kind::copy,
                      .dtype = DType::u8,
                      .shape = {},
                      .from = &source,
                      .node = source.find(find_args(source), "opaque")}}};
  auto const built = build_shard(content);
  auto const model = built.document.find(built.document.root, "model");
  EXPECT_EQ(built.document.class_of(built.document.find(model, "a._extra_state")).second,
            "RerunMode");
  EXPECT_TRUE(built.tensors.empty());
}

TEST(BuildShard, EqualContentGivesEqualBytes) {
  auto first = build_shard(two_chunks()).document;
  auto second = build_shard(two_chunks()).document;
  EXPECT_EQ(plan_torch_file(first, model_archive_name).pickle_bytes,
            plan_torch_file(second, model_archive_name).pickle_bytes);
}

TEST(BuildShard, RefusesTensorsInCopiesAndNamesTwice) {
  Document source;
  source.root = source.add_dict();
  source.set(source.root, "lr_scheduler", source.add_tensor(DType::f32, {2}));
  ShardContent carried;
  carried.chunks = {{}};
  carried.carried = carried_values(source);
  EXPECT_TRUE(contains(sentence_of([&] { build_shard(carried); }, ErrorKind::source),
                       "'lr_scheduler' of the source holds a tensor"));
  ShardContent twice;
  twice.chunks = {{tensor("a", DType::f32, {1}), tensor("a", DType::f32, {1})}};
  EXPECT_TRUE(
      contains(sentence_of([&] { build_shard(twice); }, ErrorKind::internal), "written twice"));
}

TEST(TargetPlaces, AreThoseThatMegatronLoads) {
  EXPECT_EQ(target_places({.tp = 2, .pp = 1, .vpp = 1, .ep = 4, .etp = 1}),
            (std::vector<ShardPlace>{{0, 0, 0}, {0, 0, 2}, {1, 0, 1}, {1, 0, 3}}));
  EXPECT_EQ(target_places({.tp = 2, .pp = 2, .vpp = 1, .ep = 1, .etp = 0}),
            (std::vector<ShardPlace>{{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {1, 1, 0}}));
  EXPECT_EQ(target_places({.tp = 2, .pp = 2, .vpp = 1, .ep = 2, .etp = 2}).size(), 8U);
  EXPECT_EQ(target_places({.tp = 2, .pp = 1, .vpp = 1, .ep = 3, .etp = 1}).size(), 6U);
}

TEST(TargetPlaces, RefuseExpertSlicesThatShareAFile) {
  for (auto const& sizes : {MeshSizes{.tp = 1, .pp = 1, .vpp = 1, .ep = 2, .etp = 2},
                            MeshSizes{.tp = 3, .pp = 1, .vpp = 1, .ep = 2, .etp = 2}})
    EXPECT_TRUE(contains(sentence_of([&] { target_places(sizes); }, ErrorKind::usage),
                         "which does not divide tensor_parallel_size"));
}

TEST(FindArgs, OfNothingIsNothing) {
  EXPECT_EQ(find_args(Document{}), pickle::no_node);
  EXPECT_TRUE(carried_values(Document{}).empty());
}

}  // namespace
}  // namespace reshard::megatron
