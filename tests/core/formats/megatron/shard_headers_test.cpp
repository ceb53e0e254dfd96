// Files of many ranks: those that are like an earlier one are compared with it, and say the same as
// if they had been parsed.

#include "core/formats/megatron/headers/shard_headers.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::NodeId;

Document model_file(std::int64_t rank, std::string const& name = "decoder.layers.0.a.weight") {
  Document document;
  document.root = document.add_dict();
  NodeId const args = document.add_dict();
  for (std::string_view const key : {"rank", "local_rank"})
    document.set(args, key, document.add_int(rank));
  document.set(args, "tensor_model_parallel_size", document.add_int(8));
  document.set(document.root, "args", document.add_object("argparse", "Namespace", args));
  document.set(document.root, "checkpoint_version", document.add_real(3.0));
  document.set(document.root, "iteration", document.add_int(7));
  NodeId const model = document.add_dict();
  for (std::string const& key : {name, std::string("decoder.final_norm.weight")})
    document.set(model, key, document.add_tensor(DType::bf16, {4, 2}));
  document.set(document.root, "model", model);
  NodeId const random = document.add_dict();
  document.set(random, "python", document.add_tuple({document.add_int(1000 + rank)}));
  document.set(document.root, "rng_state", document.add_list({random}));
  return document;
}

Document optimizer_file() {
  Document document;
  document.root = document.add_dict();
  document.set(document.root, "buckets_coalesced", document.add_bool(true));
  NodeId const states = document.add_dict();
  for (std::string_view const slot : {"param", "exp_avg", "exp_avg_sq"})
    document.set(states, slot, document.add_tensor(DType::f32, {16}));
  NodeId const by_dtype = document.add_dict();
  NodeId const dtypes = document.add_tuple(
      {document.add_global("torch", "bfloat16"), document.add_global("torch", "float32")});
  document.at(by_dtype).items = {dtypes, states};
  NodeId const number = document.add_int(0);
  document.at(document.root).items.push_back(number);
  document.at(document.root).items.push_back(by_dtype);
  return document;
}

struct RankFiles {
  TempDirectory root;
  std::vector<std::filesystem::path> files;

  void add(char const* name, Document document) {
    files.push_back(root.path() / std::to_string(files.size()) / name);
    write_torch_file(files.back(), std::move(document));
  }
  HeaderBytes read(ShardHeaderReader& reader, std::size_t file) const {
    return reader.read(File::open_for_reading(files[file]));
  }
  /// By a reader that knows no other file.
  HeaderBytes parsed(std::size_t file) const {
    ShardHeaderReader alone(files.front(), true);
    return read(alone, file);
  }
};

TEST(ShardHeaderReader, FilesThatAreAlikeAreParsedOnceAndSayTheSame) {
  RankFiles ranks;
  for (std::int64_t rank = 0; rank < 6; ++rank) ranks.add("model_optim_rng.pt", model_file(rank));
  for (int rank = 0; rank < 4; ++rank) ranks.add("distrib_optim.pt", optimizer_file());
  ShardHeaderReader reader(ranks.files.front(), true);
  std::vector<HeaderBytes> headers;
  for (std::size_t f = 0; f < ranks.files.size(); ++f) {
    headers.push_back(ranks.read(reader, f));
    HeaderBytes const parsed = ranks.parsed(f);
    EXPECT_EQ(headers[f].own, parsed.own) << f;
    EXPECT_EQ(*headers[f].common, *parsed.common) << f;
  }
  // The first of a size may have no like, so the second is the one that others are compared with.
  for (std::size_t const f : {2U, 3U, 4U, 5U}) EXPECT_EQ(headers[f].common, headers[1].common);
  for (std::size_t const f : {8U, 9U}) EXPECT_EQ(headers[f].common, headers[7].common);
  EXPECT_NE(headers[2].own, headers[3].own) << "of another rank";
}

TEST(ShardHeaderReader, WhatDiffersInMoreIsParsed) {
  RankFiles ranks;
  for (std::int64_t rank = 0; rank < 3; ++rank) ranks.add("model_optim_rng.pt", model_file(rank));
  ranks.add("model_optim_rng.pt", model_file(3, "decoder.layers.1.a.weight"));
  ranks.add("model_optim_rng.pt", model_file(4));
  {
    File const file = File::open_for_writing(ranks.files[4]);
    std::string const bad = "\xff";
    file.write_at(40, std::as_bytes(std::span(bad)));
  }
  ShardHeaderReader reader(ranks.files.front(), true);
  for (std::size_t f = 0; f < 4; ++f)
    EXPECT_EQ(*ranks.read(reader, f).common, *ranks.parsed(f).common) << f;
  auto const refused = capture([&] { ranks.read(reader, 4); });
  auto const alone = capture([&] { ranks.parsed(4); });
  ASSERT_TRUE(refused && alone);
  EXPECT_EQ(refused->sentence(), alone->sentence());
}

}  // namespace
}  // namespace reshard::megatron
