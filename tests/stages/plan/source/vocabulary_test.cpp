// Which rows of a padded vocabulary a job between Megatron layouts carries, and what the target is
// padded to.

#include "core/plan/digest_work.hpp"
#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

/// Megatron's files whose args do not say how many rows are vocabulary: 50 tokens, padded to a
/// multiple of 128 for each rank.
MadeCheckpoint without_vocabulary(int tp) {
  MadeCheckpoint source = made_megatron(sample_model("llama"), {{.tp = tp, .etp = tp}});
  source.value.args.set("vocab_size", Json()).set("make_vocab_size_divisible_by", 128);
  return source;
}

bool warns_of_padding(JobPlan const& plan) {
  return std::ranges::any_of(plan.warnings, [](std::string const& warning) {
    return warning.starts_with("args do not state how many of the embedding's");
  });
}

/// The rows that the embedding has in the first file.
std::uint64_t padded_rows(MadeCheckpoint const& source, JobPlan const& plan) {
  auto const hidden = static_cast<std::uint64_t>(*source.value.args.find("hidden_size")->integer());
  for (Blob const& blob : plan.target.blobs)
    if (blob.file == 0 && blob.name.ends_with("word_embeddings.weight"))
      for (SummedRecord const& record : plan.files.front().frame->records())
        if (record.offset_bytes == blob.offset_bytes)
          return record.size_bytes / (hidden * static_cast<std::uint64_t>(bits(blob.dtype) / 8));
  return 0;
}

TEST(JobPlanVocabulary, OfUnknownSizeIsKeptWithAWarningWhereItsPaddingDependsOnIt) {
  MadeCheckpoint const source = without_vocabulary(2);
  JobPlan const plan = planned(source, request_for(FormatId::megatron));
  EXPECT_TRUE(warns_of_padding(plan)) << fmt::format("{}", fmt::join(plan.warnings, "\n"));
  EXPECT_EQ(padded_rows(source, plan), 256);
}

TEST(JobPlanVocabulary, OfUnknownSizeIsPaddedWhereAllSizesGiveTheSame) {
  MadeCheckpoint const source = without_vocabulary(1);
  JobPlan const same = planned(source, request_for(FormatId::megatron));
  EXPECT_FALSE(warns_of_padding(same)) << fmt::format("{}", fmt::join(same.warnings, "\n"));
  EXPECT_EQ(padded_rows(source, same), 128);
  JobPlan const wider = planned(source, request_for(FormatId::megatron, {.tp = 4, .etp = 4}));
  EXPECT_FALSE(warns_of_padding(wider)) << fmt::format("{}", fmt::join(wider.warnings, "\n"));
  EXPECT_EQ(padded_rows(source, wider), 512 / 4);
}

/// What a job does with the rows of the embedding.
struct Rows {
  std::uint64_t in_first_file;  ///< that the target has
  Index carried;                ///< from source to target
  Index meant;                  ///< that the digest is of
  bool unknown;                 ///< whether a warning says that padding is not known
  bool operator==(Rows const&) const = default;
};

Rows rows_of(MadeCheckpoint const& source, TargetRequest request, std::string const& map) {
  request.map = map;
  JobPlan const plan = planned(source, request);
  expect_sound(plan);
  EXPECT_EQ(plan.map_name, map == "auto" ? "" : map + ".toml");
  Model const& model = *plan.model;
  return {padded_rows(source, plan),
          model.axes()[static_cast<AxisId>(model.axes().find("vocab"))].size,
          logical_shape(model, *model.find_tensor("embed")).front(), warns_of_padding(plan)};
}

/// 50 tokens in 128 rows for each rank of the source.
MadeCheckpoint padded_source(int tp, Index vocab, Index divisor) {
  MadeCheckpoint source = made_megatron(sample_model("llama"), {{.tp = tp, .etp = tp}});
  source.value.args.set("vocab_size", vocab)
      .set("make_vocab_size_divisible_by", divisor)
      .set("padded_vocab_size", 128 * tp);
  return source;
}

TEST(JobPlanVocabulary, OfANamedFamilyIsThatOfArgs) {
  for (int const from : {1, 2, 4})
    for (int const to : {1, 2, 4}) {
      MadeCheckpoint const source = padded_source(from, 50, 128);
      TargetRequest const request = request_for(FormatId::megatron, {.tp = to, .etp = to});
      Rows const rows = rows_of(source, request, "auto");
      EXPECT_EQ(rows_of(source, request, "llama"), rows) << from << " to " << to;
      EXPECT_EQ(rows.in_first_file, 128U);
      EXPECT_EQ(rows.meant, 50);
      EXPECT_EQ(rows.carried, 128 * std::min(from, to)) << "all where the target has as many";
    }
}

TEST(JobPlanVocabulary, OfANamedFamilyHasThePaddingOfArgs) {
  MadeCheckpoint const source = padded_source(2, 250, 64);
  TargetRequest const request = request_for(FormatId::megatron, {.tp = 4, .etp = 4});
  Rows const rows = rows_of(source, request, "auto");
  EXPECT_EQ(rows.in_first_file, 256U / 4);
  EXPECT_EQ(rows_of(source, request, "llama"), rows);
}

TEST(JobPlanVocabulary, OfUnknownSizeIsKeptWhetherOrNotAFamilyIsNamed) {
  MadeCheckpoint const source = padded_source(2, 50, 8);  // that would be 64 rows
  TargetRequest const request = request_for(FormatId::megatron);
  Rows const rows = rows_of(source, request, "auto");
  EXPECT_TRUE(rows.unknown);
  EXPECT_EQ(rows.carried, 256);
  EXPECT_EQ(rows_of(source, request, "llama"), rows);
}

TEST(JobPlanVocabulary, OfATorchDistTargetIsThatOfArgs) {
  MadeCheckpoint const source = padded_source(2, 50, 128);
  for (int const to : {1, 2}) {
    TargetRequest const request = request_for(FormatId::torch_dist, {.tp = to, .etp = to});
    Rows const rows = rows_of(source, request, "auto");
    EXPECT_EQ(rows_of(source, request, "llama"), rows) << to;
    EXPECT_EQ(rows.carried, 128 * to);
  }
}

TEST(JobPlanVocabulary, WithoutArgsIsThatOfTheConfigAndKeepsItsPadding) {
  SampleModel const sample = sample_model("llama");
  MadeCheckpoint source = made_torch_dist(sample, true);
  source.value.args = Json();
  huggingface::Folder& beside = source.value.beside.emplace();
  beside.config = sample.config;
  beside.config_text = sample.config.dump(2) + "\n";
  JobPlan const plan = planned(source, request_for(FormatId::megatron));
  expect_sound(plan);
  EXPECT_EQ(plan.plan.source_bytes, bytes_of(source.value)) << "all 128 rows";
  EXPECT_EQ(logical_shape(*plan.model, *plan.model->find_tensor("embed")).front(), 50);
  ASSERT_TRUE(plan.stated);
  EXPECT_EQ(plan.stated->args.find("vocab_size")->dump(), "50");
  EXPECT_EQ(plan.stated->args.find("padded_vocab_size")->dump(), "128");
}

}  // namespace
}  // namespace reshard::test
