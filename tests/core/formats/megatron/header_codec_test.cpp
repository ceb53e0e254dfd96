#include <algorithm>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "core/formats/megatron/headers/shard.hpp"
#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

void expect_same(FileTensor const& a, FileTensor const& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.strides, b.strides);
  EXPECT_EQ(a.offset_bytes, b.offset_bytes);
  EXPECT_EQ(a.size_bytes, b.size_bytes);
}

void expect_same(ShardHeader const& a, ShardHeader const& b) {
  EXPECT_EQ(a.args, b.args);
  EXPECT_EQ(a.checkpoint_version, b.checkpoint_version);
  EXPECT_EQ(a.iteration, b.iteration);
  EXPECT_EQ(a.has_optimizer, b.has_optimizer);
  EXPECT_EQ(a.has_rng, b.has_rng);
  EXPECT_EQ(a.other_keys, b.other_keys);
  EXPECT_EQ(a.unplaced, b.unplaced);
  ASSERT_EQ(a.records.size(), b.records.size());
  for (std::size_t r = 0; r < a.records.size(); ++r) {
    EXPECT_EQ(a.records[r].offset_bytes, b.records[r].offset_bytes);
    EXPECT_EQ(a.records[r].size_bytes, b.records[r].size_bytes);
  }
  ASSERT_EQ(a.chunks.size(), b.chunks.size());
  for (std::size_t c = 0; c < a.chunks.size(); ++c) {
    ASSERT_EQ(a.chunks[c].tensors.size(), b.chunks[c].tensors.size());
    for (std::size_t i = 0; i < a.chunks[c].tensors.size(); ++i)
      expect_same(a.chunks[c].tensors[i], b.chunks[c].tensors[i]);
    ASSERT_EQ(a.chunks[c].extras.size(), b.chunks[c].extras.size());
    for (std::size_t i = 0; i < a.chunks[c].extras.size(); ++i) {
      auto const& x = a.chunks[c].extras[i];
      auto const& y = b.chunks[c].extras[i];
      EXPECT_EQ(x.key, y.key);
      EXPECT_EQ(x.kind, y.kind);
      EXPECT_EQ(x.tensors_before, y.tensors_before);
      EXPECT_EQ(x.size_bytes, y.size_bytes);
      expect_same(x.tensor, y.tensor);
    }
  }
}

ShardHeader example() {
  ShardHeader header;
  header.args = parse_json(
      R"({"a": null, "b": [true, false, -3, 1.5, "x\n"], "c": {"d": {}}, "big": 9223372036854775807})",
      "test");
  header.args.set("lowest", Json(std::numeric_limits<std::int64_t>::min()));
  header.args.set("infinite", Json(std::numeric_limits<double>::infinity()));
  header.args.set("not text", Json(std::string("\xff\x00z", 3)));
  header.checkpoint_version = 3.0;
  header.iteration = 1'000'000'007;
  ChunkTable first;
  first.tensors = {
      {"decoder.layers.0.a", DType::bf16, {2, 3}, {}, 64, 12},
      {"decoder.layers.0.b", DType::f32, {}, {}, 128, 4},
      {"decoder.layers.10.a", DType::c128, {0, 5}, {1, 7}, (std::uint64_t{1} << 63), 0}};
  first.extras = {{.key = "decoder.layers.0.a._extra_state",
                   .kind = ExtraKind::none,
                   .tensors_before = 1,
                   .tensor = {},
                   .size_bytes = 0},
                  {.key = "x",
                   .kind = ExtraKind::uint8_tensor,
                   .tensors_before = 3,
                   .tensor = {"x", DType::u8, {9}, {}, 77, 9},
                   .size_bytes = 9},
                  {.key = "",
                   .kind = ExtraKind::bytes_io,
                   .tensors_before = 3,
                   .tensor = {},
                   .size_bytes = 500}};
  header.chunks = {first, ChunkTable{}, first};
  header.has_rng = true;
  header.other_keys = {"opt_param_scheduler", ""};
  header.unplaced = {"odd"};
  header.records = {{64, 12, 0xffffffffU},
                    {128, 4, 1},
                    {std::uint64_t{1} << 40, std::uint64_t{1} << 62, 0x12345678}};
  return header;
}

ShardHeader unpack(PackedHeader const& packed) {
  ShardHeader header = unpack_common(packed.common);
  header.args = unpack_args(packed.args);
  return header;
}

TEST(PackedHeader, ComesBackAsItWas) {
  expect_same(unpack(pack(example())), example());
  expect_same(unpack(pack(ShardHeader{})), ShardHeader{});
}

TEST(PackedHeader, FilesOfOnePartOfTheModelHaveAlikeWhatIsLarge) {
  ShardHeader other = example();
  other.args.set("rank", Json(std::int64_t{7}));
  other.records[1].crc32 = 2;
  EXPECT_EQ(pack(other).common, pack(example()).common);
  EXPECT_NE(pack(other).args, pack(example()).args);
  other.chunks[2].tensors[0].offset_bytes += 64;
  EXPECT_NE(pack(other).common, pack(example()).common);
}

TEST(PackedHeader, IsCompact) {
  ShardHeader header;
  header.chunks.resize(1);
  for (int i = 0; i < 1000; ++i) {
    header.chunks[0].tensors.push_back(
        {fmt::format("decoder.layers.{}.self_attention.linear_proj.weight", i),
         DType::bf16,
         {4096, 4096},
         {},
         static_cast<std::uint64_t>(i) << 25U,
         std::uint64_t{1} << 25U});
    header.records.push_back(
        {static_cast<std::uint64_t>(i) << 25U, std::uint64_t{1} << 25U, 0xffffffffU});
  }
  EXPECT_LT(pack(header).common.size(), 80'000U);
}

TEST(PackedHeader, CutAnywhereIsAnError) {
  PackedHeader const packed = pack(example());
  auto const expect_whole = [](std::string const& bytes, auto const& unpack_bytes) {
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_THROW(unpack_bytes(std::string_view(bytes).substr(0, size)), Error) << size;
    EXPECT_THROW(unpack_bytes(bytes + "x"), Error);
  };
  expect_whole(packed.args, unpack_args);
  expect_whole(packed.common, unpack_common);
}

TEST(PackedHeader, DamageIsAnErrorOrAnotherHeaderNeverACrash) {
  PackedHeader const packed = pack(example());
  std::mt19937 random(7);  // NOLINT: the same cases in every run
  auto const damage = [&](std::string const& good, auto const& unpack_bytes) {
    for (int round = 0; round < 10'000; ++round) {
      auto bytes = good;
      for (int flips = 0; flips < 3; ++flips)
        bytes[random() % bytes.size()] = static_cast<char>(random() & 0xffU);
      try {
        unpack_bytes(bytes);
      } catch (Error const& error) {
        EXPECT_EQ(error.kind(), ErrorKind::internal);
      }
    }
  };
  damage(packed.args, unpack_args);
  damage(packed.common, unpack_common);
}

TEST(PackedHeader, EndlessNestingIsAnError) {
  std::string bytes;
  for (int level = 0; level < 1000; ++level) bytes += std::string("\x06\x01", 2);
  EXPECT_THROW(unpack_args(bytes + std::string(20, '\0')), Error);
}

}  // namespace
}  // namespace reshard::megatron
