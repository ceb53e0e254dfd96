#include "core/formats/megatron/report.hpp"

#include <gtest/gtest.h>

#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

/// A MoE model of four layers on sizes T=2, P=2, E=1, and its headers.
struct Example {
  Directory directory;
  std::vector<ShardHeader> headers;

  std::vector<ShardHeader const*> pointers() const {
    std::vector<ShardHeader const*> result;
    for (auto const& header : headers) result.push_back(&header);
    return result;
  }
};

FileTensor tensor(std::string name, std::vector<Index> shape) {
  return {std::move(name), DType::bf16, std::move(shape), {}, 0, 0};
}

ShardHeader header_of(int pp, Json const& args) {
  ShardHeader header;
  header.args = args;
  header.checkpoint_version = 3.0;
  ChunkTable chunk;
  if (pp == 0) chunk.tensors.push_back(tensor("embedding.word_embeddings.weight", {64, 8}));
  for (int layer = 0; layer < 2; ++layer) {
    chunk.tensors.push_back(
        tensor(fmt::format("decoder.layers.{}.self_attention.linear_qkv.weight", layer), {8, 8}));
    chunk.tensors.push_back(
        tensor(fmt::format("decoder.layers.{}.input_layernorm.weight", layer), {8}));
    chunk.tensors.push_back(tensor(
        fmt::format("decoder.layers.{}.mlp.experts.local_experts.0.linear_fc1.weight", layer),
        {8, 8}));
  }
  if (pp == 1) chunk.tensors.push_back(tensor("decoder.final_layernorm.weight", {8}));
  header.chunks = {chunk};
  return header;
}

Example example() {
  auto const args = parse_json(
      R"({"num_layers": 4, "hidden_size": 8, "num_attention_heads": 4, "num_query_groups": 2, "num_experts": 2,
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": null,
    "expert_model_parallel_size": 1, "padded_vocab_size": 128, "untie_embeddings_and_output_weights": true})",
      "test");
  Example result;
  result.directory.root = "/ckpt";
  result.directory.iteration_dir = "/ckpt/iter_0000010";
  result.directory.iteration = 10;
  for (int tp = 0; tp < 2; ++tp)
    for (int pp = 0; pp < 2; ++pp) {
      Shard shard;
      shard.name = format_shard_name({tp, pp, 0}, {.tp = 2, .pp = 2}, NameStyle::megatron);
      shard.numbers = *parse_shard_name(shard.name);
      shard.files = {"distrib_optim.pt", "model_optim_rng.pt"};
      shard.model_file = "model_optim_rng.pt";
      result.directory.shards.push_back(shard);
      result.headers.push_back(header_of(pp, args));
    }
  return result;
}

Json report_of(Example const& e) {
  auto const pointers = e.pointers();
  return inspect_json(e.directory, classify(shard_facts(e.directory, pointers), {}), pointers);
}

TEST(Inspect, HasItsFieldsInOrder) {
  auto const report = report_of(example());
  std::vector<std::string> fields;
  for (auto const& [field, value] : *report.members()) fields.push_back(field);
  EXPECT_EQ(fields, (std::vector<std::string>{"layout_class", "reason", "expected_pattern",
                                              "loader", "sizes", "found", "mismatches", "notes",
                                              "model", "pp_layout", "optimizer", "rng"}));
}

TEST(Inspect, AnswersTheGuidesQuestions) {
  auto const report = report_of(example());
  EXPECT_EQ(*report.find("layout_class")->text(), "2D");
  EXPECT_EQ(*report.find("loader")->text(), "non-EP");
  EXPECT_EQ(*report.find("expected_pattern")->text(), "mp_rank_{tp:02}_{pp:03}");
  EXPECT_EQ(report.find("mismatches")->dump(), "[]");
  EXPECT_EQ(report.find("sizes")->find("pipeline")->dump(), R"({"value": 2, "source": "args"})");
  EXPECT_EQ(report.find("found")->find("ranges")->dump(), "[[0, 1], [0, 1]]");
  EXPECT_EQ(report.find("optimizer")->find("kind")->dump(), R"("distributed")");
  auto const& model = *report.find("model");
  EXPECT_EQ(*model.find("spec")->text(), "local");
  EXPECT_EQ(*model.find("experts")->text(), "SequentialMLP");
  EXPECT_EQ(*model.find("attention")->text(), "GQA, 4 heads in 2 groups");
  EXPECT_EQ(model.find("embedding_rows")->dump(), "128");
  EXPECT_EQ(model.find("tied_embeddings")->dump(), "false");
}

TEST(Inspect, ComparesStagesWithTheFiles) {
  auto e = example();
  auto const layout = *report_of(e).find("pp_layout");
  ASSERT_EQ(layout.items()->size(), 2U);
  EXPECT_EQ(
      (*layout.items())[1].dump(),
      R"({"pp": 1, "vpp": 0, "decoder": [[2, 4]], "mtp": [], "embedding": false, "head": true, "layers_found": 2})");
  for (auto& header : e.headers) header.args.set("num_layers", Json(6));
  auto const report = report_of(e);
  ASSERT_EQ(report.find("mismatches")->items()->size(), 2U);
  EXPECT_TRUE(contains(*(*report.find("mismatches")->items())[0].text(),
                       "pp 0 vpp 0: args give 3 decoder layers, the file has 2"));
}

TEST(Inspect, WorksWithoutHeaders) {
  auto const e = example();
  std::vector<ShardHeader const*> const none(e.headers.size(), nullptr);
  auto const report = inspect_json(e.directory, classify(shard_facts(e.directory, none), {}), none);
  EXPECT_EQ(report.find("mismatches")->items()->size(), 1U);  // the second number is undecided
  EXPECT_TRUE(report.find("pp_layout")->is_null());
}

TEST(Inspect, TextIsOneFieldALine) {
  auto const text = inspect_text(report_of(example()));
  EXPECT_TRUE(contains(text, "layout_class      2D\n")) << text;
  EXPECT_TRUE(contains(text, "sizes             tensor                  2 (args)\n")) << text;
  EXPECT_TRUE(contains(
      text,
      "pp_layout         pp 0, vpp 0, decoder [[0, 2]], mtp -, embedding true, head false, layers_found 2\n"))
      << text;
}

TEST(Inspect, TheSummarySaysWhatItIsInAFewLines) {
  EXPECT_EQ(inspect_summary(report_of(example())),
            "layout            tp 2 (from args), pp 2 (from args), vpp 1 (from args), ep 1 (from "
            "args), etp 2 (from default)\n"
            "iteration         10\n"
            "folders           4, named mp_rank_{tp:02}_{pp:03}\n"
            "model             4 layers, hidden size 8, 2 experts, GQA, 4 heads in 2 groups, "
            "padded to 128\n"
            "modules           local layers, SequentialMLP\n"
            "optimizer         distributed\n"
            "random state      no\n");
}

TEST(Inspect, TheSummaryHasWhatIsMissing) {
  auto e = example();
  e.directory.foreign = {"\x1b[31mred"};
  auto const text = inspect_summary(report_of(e));
  EXPECT_TRUE(contains(text, "other files       [\\u001b[31mred]\n")) << text;
  EXPECT_FALSE(contains(text, "\x1b"));
}

TEST(Inspect, TextDoesNotPassControlCharactersOn) {
  auto e = example();
  e.directory.foreign = {"\x1b[31mred"};
  EXPECT_FALSE(contains(inspect_text(report_of(e)), "\x1b"));
}

TEST(Inspect, AnImpossiblePipelineIsAMismatch) {
  auto e = example();
  for (auto& header : e.headers) header.args.set("num_layers", Json(5));
  EXPECT_EQ(report_of(e).find("mismatches")->items()->size(), 1U);
}

}  // namespace
}  // namespace reshard::megatron
