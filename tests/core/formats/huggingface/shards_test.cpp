#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "core/formats/huggingface/folder.hpp"
#include "core/formats/huggingface/shards.hpp"

namespace reshard::huggingface {
namespace {

std::vector<TensorSpec> tensors_of_bytes(std::vector<Index> const& sizes) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    tensors.push_back({fmt::format("t{}", i), DType::u8, {sizes[i]}});
  return tensors;
}

std::vector<ShardFile> plan_like(std::vector<TensorSpec> const& tensors, std::uint64_t limit,
                                 WeightMap const& map) {
  std::optional<Folder> folder(std::in_place);
  folder->weight_map = map;
  ReferenceWeights reference(folder);
  return plan_shards(tensors, limit, reference);
}

/// The entries of the files' headers.
std::vector<Metadata> metadata_in(std::vector<ShardFile> const& shards) {
  std::vector<Metadata> result;
  for (ShardFile const& shard : shards)
    result.push_back(safetensors::parse_header(std::as_bytes(std::span(shard.plan.header)),
                                               shard.plan.size_bytes, shard.name)
                         .metadata);
  return result;
}

TEST(HuggingFaceShards, HaveTheMetadataOfTheSourcesFiles) {
  std::vector<FileMetadata> source;
  add_metadata(source, "model.safetensors", {{"format", "pt"}});
  EXPECT_TRUE(source.empty()) << "nothing to carry";
  Metadata const first{{"format", "pt"}, {"tensor_names", "[a]"}, {"a", "Int8Tensor"}};
  Metadata const second{{"format", "pt"}, {"tensor_names", "[b]"}, {"b", "Int8Tensor"}};
  add_metadata(source, "model-00001-of-00002.safetensors", first);
  add_metadata(source, "model-00002-of-00002.safetensors", second);
  source = parse_metadata(metadata_text(source), "safetensors_metadata.json");
  EXPECT_EQ(metadata_in(plan_shards(tensors_of_bytes({6, 6}), 6, DataLayout::usual, source)),
            (std::vector<Metadata>{first, second}));
  EXPECT_EQ(metadata_in(plan_shards(tensors_of_bytes({6}), 6, DataLayout::usual, source)),
            (std::vector<Metadata>{{{"format", "pt"}, {"a", "Int8Tensor"}, {"b", "Int8Tensor"}}}))
      << "other files: what does not contradict itself";
  std::vector<std::string> lost;
  metadata_of(source, "model.safetensors", lost);
  EXPECT_EQ(lost, (std::vector<std::string>{"tensor_names"}));
  for (char const* damaged : {"[]", R"({"a": 1})", R"({"a": {"b": 1}})"})
    EXPECT_THROW(parse_metadata(damaged, "place"), Error) << damaged;
}

struct Split {
  std::vector<Index> sizes;
  std::uint64_t limit;
  std::vector<std::vector<std::size_t>> shards;
};

TEST(HuggingFaceShards, AreSplitGreedilyAsTheHubDoes) {
  std::vector<Split> const cases = {
      {.sizes = {6, 6, 2, 6, 2, 2}, .limit = 10, .shards = {{0}, {1, 2}, {3, 4, 5}}},
      {.sizes = {5, 5}, .limit = 10, .shards = {{0, 1}}},
      {.sizes = {5, 5, 1}, .limit = 10, .shards = {{0, 1}, {2}}},
      {.sizes = {1, 20, 1},
       .limit = 10,
       .shards = {{1}, {0, 2}}},  // the file under construction stays open
      {.sizes = {20, 20}, .limit = 10, .shards = {{0}, {1}}},
      {.sizes = {10, 0, 0}, .limit = 10, .shards = {{0, 1, 2}}},
      {.sizes = {}, .limit = 10, .shards = {{}}},
  };
  for (Split const& each : cases) {
    auto const shards = plan_shards(tensors_of_bytes(each.sizes), each.limit);
    ASSERT_EQ(shards.size(), each.shards.size());
    for (std::size_t k = 0; k < shards.size(); ++k) {
      EXPECT_EQ(shards[k].tensors, each.shards[k]);
      std::string const expected =
          shards.size() == 1
              ? "model.safetensors"
              : fmt::format("model-{:05}-of-{:05}.safetensors", k + 1, shards.size());
      EXPECT_EQ(shards[k].name, expected);
    }
    EXPECT_EQ(needs_index(shards), shards.size() != 1);
  }
}

TEST(HuggingFaceShards, ThePlanOfAShardIsInTheOrderOfItsTensors) {
  std::vector<TensorSpec> const tensors = {
      {"a", DType::u8, {3}}, {"b", DType::f32, {2}}, {"c", DType::u8, {1}}};
  auto const shards = plan_shards(tensors, 11);
  ASSERT_EQ(shards.size(), 2U);
  std::uint64_t const start = shards[0].plan.header.size();
  EXPECT_EQ(shards[0].plan.offset_bytes, (std::vector<std::uint64_t>{start + 8, start}));
  auto const header = safetensors::parse_header(std::as_bytes(std::span(shards[0].plan.header)),
                                                shards[0].plan.size_bytes, "x");
  EXPECT_EQ(header.metadata, (decltype(header.metadata){{"format", "pt"}}));
}

std::map<std::string, std::set<std::string>> files_of(std::vector<ShardFile> const& shards,
                                                      std::vector<TensorSpec> const& tensors) {
  std::map<std::string, std::set<std::string>> files;
  for (ShardFile const& shard : shards)
    for (std::size_t const i : shard.tensors)
      EXPECT_TRUE(files[shard.name].insert(tensors[i].name).second);
  return files;
}

TEST(HuggingFaceShards, AReferenceGivesItsFilesWhateverTheirSize) {
  auto const tensors = tensors_of_bytes({5, 5, 5, 5});
  WeightMap const reference = {{"t0", "b.safetensors"},
                               {"t1", "a.safetensors"},
                               {"t2", "b.safetensors"},
                               {"t3", "a.safetensors"},
                               {"gone", "c.safetensors"}};
  auto const shards = plan_like(tensors, 6, reference);
  EXPECT_EQ(files_of(shards, tensors),
            (std::map<std::string, std::set<std::string>>{{"a.safetensors", {"t1", "t3"}},
                                                          {"b.safetensors", {"t0", "t2"}}}));
  EXPECT_EQ(shards.front().name, "a.safetensors");
}

TEST(HuggingFaceShards, TensorsThatTheReferenceDoesNotKnowGetFilesOfTheirOwn) {
  auto const tensors = tensors_of_bytes({5, 5, 5, 5});
  auto const shards = plan_like(tensors, 10, WeightMap{{"t2", "a.safetensors"}});
  EXPECT_EQ(files_of(shards, tensors), (std::map<std::string, std::set<std::string>>{
                                           {"a.safetensors", {"t2"}},
                                           {"model-added-00001-of-00002.safetensors", {"t0", "t1"}},
                                           {"model-added-00002-of-00002.safetensors", {"t3"}}}));
  auto const again =
      plan_like(tensors, 10, WeightMap{{"t2", "model-added-00001-of-00001.safetensors"}});
  EXPECT_EQ(again.back().name, "model-added2-00002-of-00002.safetensors");
}

TEST(HuggingFaceShards, ASingleFileReferenceNeedsNoIndexOthersDo) {
  auto const tensors = tensors_of_bytes({5});
  EXPECT_FALSE(needs_index(plan_like(tensors, 10, WeightMap{{"t0", "model.safetensors"}})));
  EXPECT_TRUE(
      needs_index(plan_like(tensors, 10, WeightMap{{"t0", "model-00001-of-00001.safetensors"}})));
}

TEST(HuggingFaceShards, EveryTensorIsInExactlyOneFileWithinTheLimit) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<Index> sizes(random() % 50);
    for (Index& size : sizes) size = static_cast<Index>(random() % 40);
    auto const tensors = tensors_of_bytes(sizes);
    auto const shards = plan_shards(tensors, 30);
    std::set<std::size_t> seen;
    for (ShardFile const& shard : shards) {
      Index bytes = 0;
      for (std::size_t const i : shard.tensors) {
        EXPECT_TRUE(seen.insert(i).second);
        bytes += sizes[i];
      }
      EXPECT_TRUE(bytes <= 30 || shard.tensors.size() == 1);
    }
    EXPECT_EQ(seen.size(), tensors.size());
  }
}

TEST(HuggingFaceShards, AnErrorNamesTheFile) {
  std::vector<TensorSpec> const tensors = {{"a", DType::u8, {1}}, {"a", DType::u8, {1}}};
  try {
    plan_shards(tensors);
    FAIL();
  } catch (Error const& error) {
    EXPECT_TRUE(error.sentence().starts_with("model.safetensors: tensor 'a'")) << error.sentence();
  }
}

TEST(HuggingFaceIndex, IsWrittenAsTransformersWritesIt) {
  std::vector<TensorSpec> const tensors = {{"b", DType::f32, {2, 2}}, {"a", DType::bf16, {3}}};
  auto const shards = plan_shards(tensors, 16);
  std::string const expected =
      "{\n  \"metadata\": {\n    \"total_size\": 22\n  },\n  \"weight_map\": {\n"
      "    \"a\": \"model-00002-of-00002.safetensors\",\n    \"b\": \"model-00001-of-00002.safetensors\"\n  }\n}\n";
  EXPECT_EQ(index_json(shards, tensors), expected);
}

TEST(HuggingFaceIndex, KeepsUnknownMetadataAndRecomputesTheRest) {
  auto const tensors = tensors_of_bytes({5, 6});
  auto const shards = plan_shards(tensors, 6);
  Json const reference = parse_json(
      R"({"total_size": 999.0, "zeta": {"b": 1, "a": [2]}, "total_parameters": 1, "mergekit_version": "0.1"})",
      "test");
  Json const index = parse_json(index_json(shards, tensors, reference), "index");
  EXPECT_EQ(
      index.find("metadata")->dump(),
      R"({"mergekit_version": "0.1", "total_parameters": 11, "total_size": 11, "zeta": {"a": [2], "b": 1}})");
  EXPECT_EQ(
      parse_json(index_json(shards, tensors), "index").find("metadata")->find("total_parameters"),
      nullptr);
}

}  // namespace
}  // namespace reshard::huggingface
