// Which rows of a padded vocabulary a job between Megatron layouts carries, and what the target is
// padded to.

#include "stages/plan/source/facts/vocabulary.hpp"

#include "core/plan/equal/digest_work.hpp"
#include "tests/stages/plan/planning.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::test {
namespace {

/// Megatron's files whose args do not say how many rows are vocabulary: 50 tokens, padded to a
/// multiple of 128 for each rank.
MadeCheckpoint without_vocabulary(int tp) {
  MadeCheckpoint source = made_megatron(sample_model("llama"), {{.tp = tp, .etp = tp}});
  source.value.run.args.set("vocab_size", Json()).set("make_vocab_size_divisible_by", 128);
  return source;
}

bool warns_of_padding(JobPlan const& plan) {
  return std::ranges::any_of(plan.warnings, [](std::string const& warning) {
    return warning.starts_with("args do not state how many of the embedding's");
  });
}

/// The rows that the embedding has in the first file.
std::uint64_t padded_rows(MadeCheckpoint const& source, JobPlan const& plan) {
  auto const hidden =
      static_cast<std::uint64_t>(*source.value.run.args.find("hidden_size")->integer());
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

Rows rows_of(MadeCheckpoint const& source, PlanRequest request, std::string const& map) {
  request.read.map = map;
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
  source.value.run.args.set("vocab_size", vocab)
      .set("make_vocab_size_divisible_by", divisor)
      .set("padded_vocab_size", 128 * tp);
  return source;
}

TEST(JobPlanVocabulary, OfANamedFamilyIsThatOfArgs) {
  for (int const from : {1, 2, 4})
    for (int const to : {1, 2, 4}) {
      MadeCheckpoint const source = padded_source(from, 50, 128);
      PlanRequest const request = request_for(FormatId::megatron, {.tp = to, .etp = to});
      Rows const rows = rows_of(source, request, "auto");
      EXPECT_EQ(rows_of(source, request, "llama"), rows) << from << " to " << to;
      EXPECT_EQ(rows.in_first_file, 128U);
      EXPECT_EQ(rows.meant, 50);
      EXPECT_EQ(rows.carried, 128 * std::min(from, to)) << "all where the target has as many";
    }
}

TEST(JobPlanVocabulary, OfANamedFamilyHasThePaddingOfArgs) {
  MadeCheckpoint const source = padded_source(2, 250, 64);
  PlanRequest const request = request_for(FormatId::megatron, {.tp = 4, .etp = 4});
  Rows const rows = rows_of(source, request, "auto");
  EXPECT_EQ(rows.in_first_file, 256U / 4);
  EXPECT_EQ(rows_of(source, request, "llama"), rows);
}

TEST(JobPlanVocabulary, OfUnknownSizeIsKeptWhetherOrNotAFamilyIsNamed) {
  MadeCheckpoint const source = padded_source(2, 50, 8);  // that would be 64 rows
  PlanRequest const request = request_for(FormatId::megatron);
  Rows const rows = rows_of(source, request, "auto");
  EXPECT_TRUE(rows.unknown);
  EXPECT_EQ(rows.carried, 256);
  EXPECT_EQ(rows_of(source, request, "llama"), rows);
}

/// padded_source() of Megatron's null tokenizer, which has a token more than args.vocab_size, and
/// where `recorded` is not 0 with a record of so many rows.
MadeCheckpoint of_null_tokenizer(Index vocab, Index recorded = 0) {
  MadeCheckpoint source = padded_source(2, vocab, 128);
  source.value.run.args.set("tokenizer_type", "NullTokenizer");
  source.value.logical.vocab = recorded;
  return source;
}

TEST(JobPlanVocabulary, OfARecordCountsBeforeThatOfArgs) {
  PlanRequest const request = request_for(FormatId::megatron);
  EXPECT_EQ(rows_of(of_null_tokenizer(50), request, "auto").meant, 51);
  for (char const* map : {"auto", "llama"}) {
    Rows const rows = rows_of(of_null_tokenizer(50, 50), request, map);
    EXPECT_EQ(rows.meant, 50) << "row 50 is padding of the job that wrote the record";
    EXPECT_EQ(rows.carried, 128);
    EXPECT_FALSE(rows.unknown);
  }
}

TEST(JobPlanVocabulary, OfARecordOfAllRowsIsNotShortenedByArgs) {
  MadeCheckpoint source = padded_source(2, 250, 128);
  PlanRequest const request = request_for(FormatId::megatron);
  EXPECT_EQ(rows_of(source, request, "auto").meant, 250);
  source.value.logical.vocab = 256;
  EXPECT_EQ(rows_of(source, request, "auto").meant, 256);
}

TEST(JobPlanVocabulary, OfAMadeConfigCountsTheTokenOfTheNullTokenizer) {
  for (FormatId const format : {FormatId::huggingface, FormatId::hdf5}) {
    PlanRequest request = request_for(format);
    request.read.map = "llama";
    request.read.true_rows = format == FormatId::hdf5;
    JobPlan const plan = planned(of_null_tokenizer(50), request);
    expect_sound(plan);
    EXPECT_EQ(logical_shape(*plan.model, *plan.model->find_tensor("embed")).front(), 51);
    EXPECT_EQ(parse_json(text_named(plan, "config.json"), "config.json").find("vocab_size")->dump(),
              "51");
  }
}

TEST(JobPlanVocabulary, OfAModelsOwnConfigMayLeaveThatTokenOut) {
  MadeCheckpoint source = of_null_tokenizer(50);
  huggingface::Folder& beside = source.value.model.beside.emplace();
  beside.path = "/made/huggingface";
  beside.config = sample_model("llama").config;
  beside.config_text = beside.config.dump(2) + "\n";
  PlanRequest request = request_for(FormatId::huggingface);
  request.read.map = "llama";
  JobPlan const plan = planned(source, request);
  expect_sound(plan);
  EXPECT_EQ(logical_shape(*plan.model, *plan.model->find_tensor("embed")).front(), 50);
}

TEST(JobPlanVocabulary, OfATorchDistTargetIsThatOfArgs) {
  MadeCheckpoint const source = padded_source(2, 50, 128);
  for (int const to : {1, 2}) {
    PlanRequest const request = request_for(FormatId::torch_dist, {.tp = to, .etp = to});
    Rows const rows = rows_of(source, request, "auto");
    EXPECT_EQ(rows_of(source, request, "llama"), rows) << to;
    EXPECT_EQ(rows.carried, 128 * to);
  }
}

TEST(JobPlanVocabulary, WithoutArgsIsThatOfTheConfigAndKeepsItsPadding) {
  SampleModel const sample = sample_model("llama");
  MadeCheckpoint source = made_torch_dist(sample, true);
  source.value.run.args = Json();
  huggingface::Folder& beside = source.value.model.beside.emplace();
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

// --- model.true_vocab_size ----------------------------------------------------------------------

PlanRequest with_rows(FormatId format, Index rows, std::string const& map = "auto") {
  PlanRequest request = request_for(
      format, format == FormatId::megatron ? MeshSizes{.tp = 2, .etp = 2} : MeshSizes{});
  request.read.true_vocab_size = rows;
  request.read.map = map;
  return request;
}

/// As padded_source(), with the folder `huggingface` of the model beside.
MadeCheckpoint with_config(Json config) {
  MadeCheckpoint source = padded_source(2, 50, 128);
  huggingface::Folder& beside = source.value.model.beside.emplace();
  beside.path = "/made/huggingface";
  beside.config_text = config.dump(2) + "\n";
  beside.config = std::move(config);
  return source;
}

TEST(TrueVocabSize, ReachesArgsOfMegatronTargets) {
  for (FormatId const format : {FormatId::megatron, FormatId::torch_dist})
    for (char const* map : {"auto", "llama"}) {
      JobPlan const plan = planned(padded_source(2, 50, 128), with_rows(format, 60, map));
      expect_sound(plan);
      ASSERT_TRUE(plan.stated);
      EXPECT_EQ(plan.stated->args.find("vocab_size")->dump(), "60");
      EXPECT_EQ(logical_shape(*plan.model, *plan.model->find_tensor("embed")).front(), 60)
          << "all of them are data";
    }
}

TEST(TrueVocabSize, ReachesEveryConfigThatIsCopied) {
  Json const config = sample_model("llama").config;
  for (FormatId const format : {FormatId::huggingface, FormatId::megatron, FormatId::hdf5}) {
    JobPlan const plan = planned(with_config(config), with_rows(format, 60));
    ASSERT_TRUE(plan.reference || format == FormatId::huggingface);
    Json const written = format == FormatId::megatron ? plan.reference->config
                                                      : parse_json(text_named(plan, "config.json"),
                                                                   "the target's config.json");
    EXPECT_EQ(written.find("vocab_size")->dump(), "60") << int(format);
    EXPECT_TRUE(std::ranges::any_of(plan.warnings, [](std::string const& warning) {
      return warning.find("vocab_size = 60 (was 50)") != std::string::npos;
    })) << fmt::format("{}", fmt::join(plan.warnings, "\n"));
  }
}

TEST(TrueVocabSize, OfTheConfigChangesNothing) {
  JobPlan const plan =
      planned(with_config(sample_model("llama").config), with_rows(FormatId::huggingface, 50));
  EXPECT_FALSE(std::ranges::any_of(plan.warnings, [](std::string const& warning) {
    return warning.find("true_vocab_size") != std::string::npos;
  }));
}

TEST(TrueVocabSize, ReachesSettingsThatAreCopied) {
  ScratchFolder const folder("run_config");
  auto const restated = [&](std::string const& text) {
    write_text_file(folder.path() / "run_config.yaml", text);
    TargetDraft draft;
    draft.side_copies.push_back({folder.path() / "run_config.yaml", "iter_1/run_config.yaml"});
    draft.side_copies.push_back({folder.path() / "notes", "iter_1/notes"});
    restate_vocabulary(60, draft);
    EXPECT_EQ(draft.side_copies.size() + draft.texts.size(), 2U);
    EXPECT_EQ(draft.warnings.size(), draft.texts.empty() ? 1U : 0U);
    return draft.texts.empty() ? "" : draft.texts.front().text;
  };
  EXPECT_EQ(restated("data: {vocab_size: 1}\nmodel:\n  a: 1\n  vocab_size: 50  # of it\n  b: 2\n"),
            "data: {vocab_size: 1}\nmodel:\n  a: 1\n  vocab_size: 60\n  b: 2\n");
  EXPECT_EQ(restated("model: {vocab_size: 50}\n"), "");
  EXPECT_EQ(restated("model:\n  inner:\n    vocab_size: 50\n"), "");
  EXPECT_EQ(restated("tokenizer:\n  vocab_size: 50\nmodel:\n  a: 1\n"), "");
}

// --- rows behind it -----------------------------------------------------------------------------

/// "embed 60+68 at N" for each stretch of rows that a job leaves out.
Lines left_out_rows(JobPlan const& plan) {
  Lines lines;
  for (PaddingRows const& one : plan.listing.padding)
    lines.push_back(fmt::format("{} {}+{} in file {}", plan.model->tensor(one.tensor).name,
                                one.first_row, one.rows, one.file));
  std::ranges::sort(lines);
  return lines;
}

TEST(RowsLeftOut, AreThoseBehindTheVocabulary) {
  MadeCheckpoint const source = padded_source(2, 50, 128);
  EXPECT_EQ(left_out_rows(planned(source, with_rows(FormatId::huggingface, 0, "llama"))),
            (Lines{"embed 128+128 in file 1", "embed 50+78 in file 0", "lm_head 128+128 in file 1",
                   "lm_head 50+78 in file 0"}));
  EXPECT_EQ(left_out_rows(planned(source, with_rows(FormatId::megatron, 200))),
            (Lines{"embed 200+56 in file 1", "lm_head 200+56 in file 1"}));
  EXPECT_EQ(left_out_rows(planned(source, with_rows(FormatId::megatron, 0))), Lines{})
      << "all are carried";
}

TEST(RowsLeftOut, LieBehindThoseThatAreRead) {
  MadeCheckpoint const source = padded_source(2, 50, 128);
  JobPlan const plan = planned(source, with_rows(FormatId::huggingface, 0, "llama"));
  auto const hidden =
      static_cast<std::uint64_t>(*source.value.run.args.find("hidden_size")->integer());
  for (PaddingRows const& one : plan.listing.padding) {
    EXPECT_EQ(one.row_bytes, 2 * hidden);
    if (one.first_row != 50) continue;
    std::string const ending = plan.model->tensor(one.tensor).name == "embed"
                                   ? "word_embeddings.weight"
                                   : "output_layer.weight";
    for (Blob const& blob : plan.source.blobs) {
      if (blob.file != one.file || !blob.name.ends_with(ending)) continue;
      EXPECT_EQ(one.offset_bytes, blob.offset_bytes + 50 * one.row_bytes);
    }
  }
}

TEST(RowsLeftOut, OfChunksAndOfTensorsWithoutPadding) {
  SampleModel const sample = sample_model("llama");
  EXPECT_EQ(left_out_rows(planned(made_torch_dist(sample, true),
                                  with_rows(FormatId::huggingface, 0, "llama")))
                .size(),
            2U);
  EXPECT_EQ(left_out_rows(planned(made_huggingface(sample), request_for(FormatId::megatron))),
            Lines{});
}

}  // namespace
}  // namespace reshard::test
