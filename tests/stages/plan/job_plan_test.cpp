// Plans of small whole models, from headers alone: which files and texts a target has, and what
// becomes of state and configs.

#include "stages/plan/catalogue.hpp"

#include <set>

#include "core/base/files/file.hpp"
#include "tests/stages/plan/planning.hpp"
#include "tests/support/plan_regions.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::test {
namespace {

// --- what a target has
// ---------------------------------------------------------------------------------------------

TEST(JobPlan, FromHuggingFaceToMegatron) {
  MadeCheckpoint const source = made_huggingface(sample_model("llama"));
  JobPlan const plan =
      planned(source, request_for(FormatId::megatron, {.tp = 2, .pp = 2, .etp = 2}));
  EXPECT_EQ(paths_of(plan), (Lines{"release/mp_rank_00_000/model_optim_rng.pt",
                                   "release/mp_rank_01_000/model_optim_rng.pt",
                                   "release/mp_rank_00_001/model_optim_rng.pt",
                                   "release/mp_rank_01_001/model_optim_rng.pt"}));
  EXPECT_EQ(text_named(plan, "latest_checkpointed_iteration.txt"), "release");
  EXPECT_EQ(text_named(plan, "config.json"), source.value.model.beside->config_text);
  EXPECT_EQ(plan.map_name, "llama.toml");
  EXPECT_FALSE(plan.stored_names);
  EXPECT_EQ(plan.plan.source_bytes, bytes_of(source.value));
  EXPECT_EQ(plan.plan.logical_tensors,
            static_cast<std::uint64_t>(std::ranges::count_if(
                plan.source.tensors, [](TensorPieces const& tensor) { return !tensor.empty(); })));
  EXPECT_GT(plan.plan.target_bytes, plan.plan.source_bytes) << "every tp rank has the norms";
  for (TargetFile const& file : plan.files) EXPECT_FALSE(file.frame->records().empty());
  expect_sound(plan);
}

TEST(JobPlan, FromMegatronToHuggingFace) {
  SampleModel const sample = sample_model("llama");
  MadeCheckpoint const source = made_megatron(sample, {{.tp = 2, .pp = 3, .etp = 2}});
  PlanRequest request = request_for(FormatId::huggingface);
  request.read.map = "llama";
  JobPlan const plan = planned(source, request);
  EXPECT_EQ(paths_of(plan), Lines{"model.safetensors"});
  Json const config = parse_json(text_named(plan, "config.json"), "config.json");
  EXPECT_EQ(*config.find("hidden_size")->integer(), 24);
  EXPECT_EQ(*config.find("vocab_size")->integer(), 50);
  EXPECT_EQ(plan.plan.target_bytes, bytes_of(made_huggingface(sample).value));
  expect_sound(plan);
}

TEST(JobPlan, ToHuggingFaceFillsFilesOfTheSizeAskedFor) {
  MadeCheckpoint const source = made_huggingface(sample_model("qwen3_moe"));
  PlanRequest request = request_for(FormatId::huggingface);
  request.options.huggingface.shard_bytes = 20'000;
  JobPlan const plan = planned(source, request);
  ASSERT_GT(plan.files.size(), 4U);
  std::string const last = fmt::format("model-{0:05}-of-{0:05}.safetensors", plan.files.size());
  EXPECT_EQ(paths_of(plan).back(), last);
  Json const index =
      parse_json(text_named(plan, "model.safetensors.index.json"), "the target's index");
  EXPECT_EQ(index.find("weight_map")->members()->size(), source.value.stored.tensors.size());
  EXPECT_EQ(plan.plan.target_bytes, plan.plan.source_bytes);
  expect_sound(plan);
}

TEST(JobPlan, FromMegatronToAnotherLayoutKeepsTheRun) {
  MadeCheckpoint const source =
      made_megatron(sample_model("qwen3_moe"), {{.tp = 2, .pp = 2, .ep = 2, .etp = 1}});
  PlanRequest const request =
      request_for(FormatId::megatron, {.tp = 1, .pp = 3, .ep = 4, .etp = 1});
  JobPlan const plan = planned(source, request);
  EXPECT_EQ(plan.files.size(), 12U);
  EXPECT_EQ(paths_of(plan).front(), "iter_0000007/mp_rank_00_000_000/model_optim_rng.pt");
  EXPECT_EQ(text_named(plan, "latest_checkpointed_iteration.txt"), "7");
  EXPECT_EQ(plan.map_name, "");
  EXPECT_GT(plan.plan.replicas_dropped, 0U);
  expect_sound(plan);
}

TEST(JobPlan, FromMegatronToTorchDist) {
  MadeCheckpoint const source = made_megatron(sample_model("llama"), {{.tp = 2, .etp = 2}});
  JobPlan const plan = planned(source, request_for(FormatId::torch_dist));
  ASSERT_FALSE(plan.files.empty());
  for (TargetFile const& file : plan.files) {
    EXPECT_EQ(file.path.extension(), ".distcp");
    EXPECT_FALSE(file.frame->records().empty());
  }
  EXPECT_EQ(texts_of(plan),
            (Lines{"iter_0000007/.metadata", "iter_0000007/common.pt", "iter_0000007/metadata.json",
                   "latest_checkpointed_iteration.txt"}));
  expect_sound(plan);
}

TEST(JobPlan, TorchDistStacksLayersThatAreAlike) {
  auto const keys = [](dcp::LayerKeys layers) {
    PlanRequest request = request_for(FormatId::torch_dist);
    request.options.dist.layers = layers;
    std::set<std::string> names;
    for (Blob const& blob : planned(made_huggingface(sample_model("llama")), request).target.blobs)
      names.insert(blob.name);
    return names.size();
  };
  EXPECT_EQ(keys(dcp::LayerKeys::automatic), keys(dcp::LayerKeys::stacked));
  EXPECT_LT(keys(dcp::LayerKeys::stacked), keys(dcp::LayerKeys::separate));
}

TEST(JobPlan, FromTorchDistToMegatronWhateverItsKeys) {
  for (bool const stacked : {false, true}) {
    MadeCheckpoint const source = made_torch_dist(sample_model("qwen3_moe"), stacked);
    JobPlan const plan =
        planned(source, request_for(FormatId::megatron, {.tp = 2, .ep = 4, .etp = 1}));
    EXPECT_EQ(plan.files.size(), 4U) << stacked;
    EXPECT_EQ(plan.plan.source_bytes, bytes_of(source.value)) << stacked;
    expect_sound(plan);
  }
}

TEST(JobPlan, ToHdf5HasLogicalTensors) {
  MadeCheckpoint const source = made_huggingface(sample_model("llama"));
  JobPlan const plan = planned(source, request_for(FormatId::hdf5));
  EXPECT_EQ(paths_of(plan), Lines{"model.h5"});
  EXPECT_FALSE(plan.files.front().frame->skeleton().empty());
  EXPECT_EQ(plan.target.blobs.size(), plan.plan.logical_tensors);
  EXPECT_EQ(plan.plan.target_bytes, plan.plan.source_bytes);
  expect_sound(plan);
}

TEST(JobPlan, ToFsdpHasKeysOfTheModuleAndItsArgs) {
  JobPlan const plan =
      planned(made_megatron(sample_model("llama")), request_for(FormatId::fsdp_dtensor));
  for (Blob const& blob : plan.target.blobs)
    EXPECT_TRUE(blob.name.starts_with("model.module.")) << blob.name.text();
  Lines const texts = texts_of(plan);
  EXPECT_EQ(std::ranges::count(texts, "iter_0000007/common.pt"), 0) << "it has none";
  expect_sound(plan);
}

TEST(JobPlan, IsTheSameTwice) {
  MadeCheckpoint const source = made_megatron(sample_model("mixtral"), {{.tp = 2, .etp = 2}});
  PlanRequest const request = request_for(FormatId::torch_dist);
  JobPlan const one = planned(source, request);
  JobPlan const other = planned(source, request);
  EXPECT_EQ(paths_of(one), paths_of(other));
  ASSERT_EQ(one.texts.size(), other.texts.size());
  for (std::size_t t = 0; t < one.texts.size(); ++t)
    EXPECT_EQ(one.texts[t].text, other.texts[t].text) << one.texts[t].path;
  ASSERT_EQ(test::regions_of(one.plan).size(), test::regions_of(other.plan).size());
}

TEST(JobPlan, CutsCellsToTheLimits) {
  MadeCheckpoint const source = made_huggingface(sample_model("llama"));
  auto const cells = [&](std::uint64_t bytes) {
    PlanLimits limits;
    limits.cell_bytes = bytes;
    JobPlan const plan = make_job_plan(source.value, request_for(FormatId::megatron), limits);
    expect_sound(plan);
    return plan.plan.cells.size();
  };
  EXPECT_LT(cells(1 << 20), cells(512));
}

// --- catalogues
// ----------------------------------------------------------------------------------------------------

TEST(Catalogue, ListsTheModelOfASource) {
  JobPlan const plan =
      catalogue(made_megatron(sample_model("qwen3_moe")).value, request_for(FormatId::megatron));
  ASSERT_NE(plan.model, nullptr);
  EXPECT_EQ(plan.source.tensors.size(), plan.model->tensors().size());
  EXPECT_TRUE(plan.files.empty());
}

TEST(Catalogue, StateIsNoObstacle) {
  MadeCheckpoint source = made_megatron(sample_model("llama"));
  source.value.state.inventory.optimizer = {StateForm::in_model_files, "optimizer"};
  EXPECT_NO_THROW(catalogue(source.value, request_for(FormatId::megatron)));
}

// --- state
// ---------------------------------------------------------------------------------------------------------

/// torch_dist with Adam's state of every weight.
MadeCheckpoint with_adam() {
  MadeCheckpoint source = made_torch_dist(sample_model("llama"), true);
  std::vector<MadeTensor> states;
  for (StoredTensor const& tensor : source.value.stored.tensors)
    for (char const* state : {"param", "exp_avg", "exp_avg_sq"})
      states.push_back(
          {fmt::format("optimizer.state.{}.{}", state, tensor.name), tensor.shape, DType::f32});
  source.add_file(states);
  return source;
}

TEST(JobPlanState, FollowsItsWeightsIntoTorchDist) {
  MadeCheckpoint const source = with_adam();
  JobPlan const plan =
      planned(source, request_for(FormatId::torch_dist, {.tp = 2, .pp = 2, .etp = 2}));
  EXPECT_EQ(plan.plan.source_bytes, bytes_of(source.value));
  EXPECT_EQ(std::ranges::count_if(plan.target.blobs,
                                  [](Blob const& blob) {
                                    return blob.name.starts_with("optimizer.state.exp_avg.");
                                  }) *
                3,
            std::ranges::count_if(plan.target.blobs, [](Blob const& blob) {
              return blob.name.starts_with("optimizer.state.");
            }));
  expect_sound(plan);
}

TEST(JobPlanState, IsRefusedWhereTheTargetHasNoRoom) {
  expect_refused(with_adam(), request_for(FormatId::huggingface), ErrorKind::source,
                 "holds optimizer state, which the target's format cannot hold");
}

TEST(JobPlanState, IsLeftOutOnRequestWithAWarning) {
  PlanRequest request = request_for(FormatId::megatron);
  request.read.drop_optimizer = true;
  JobPlan const plan = planned(with_adam(), request);
  EXPECT_EQ(plan.plan.source_bytes, bytes_of(made_torch_dist(sample_model("llama"), true).value));
  EXPECT_EQ(
      std::ranges::count(plan.warnings, "optimizer state is dropped (source.optimizer = \"drop\")"),
      1);
}

TEST(JobPlanState, InMastersThatAreNoWholeValuesIsRefused) {
  for (auto const& [dtype, words] :
       {std::pair(DType::i16, "I16, expected F32: they are the remai"),
        std::pair(DType::f16, "F16, expected F32: a precision-aware")}) {
    MadeCheckpoint source = with_adam();
    StoredTensors& tensors = source.value.stored.tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t)
      if (tensors.name(t).starts_with("optimizer.state.param.")) {
        StoredTensor tensor = tensors[t];
        tensor.dtype = dtype;
        tensors.set(t, tensor);
        StoredChunks& chunks = source.value.stored.chunks;
        for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
          StoredChunk half = chunks[c];
          half.item.size_bytes /= 2;
          chunks.set(c, half);
        }
      }
    for (FormatId const format : {FormatId::torch_dist, FormatId::megatron, FormatId::hdf5})
      expect_refused(source, request_for(format), ErrorKind::source, words);
  }
}

TEST(JobPlanState, InAnUnknownFormIsRefusedEverywhere) {
  MadeCheckpoint source = made_torch_dist(sample_model("llama"), true);
  source.add_file({{"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.param", {100}, DType::f32}});
  for (FormatId const format : {FormatId::torch_dist, FormatId::megatron})
    expect_refused(source, request_for(format), ErrorKind::source,
                   "under keys that this version does not know "
                   "('optimizer.distributed.dp_group_idx_0.gbuf_idx_0.param')");
}

TEST(JobPlanState, OfModelFilesIsRefusedKindByKind) {
  MadeCheckpoint source = made_megatron(sample_model("llama"));
  source.value.state.inventory.optimizer = {StateForm::in_model_files, "optimizer"};
  source.value.state.inventory.rng = {StateForm::in_model_files, "rng_state"};
  PlanRequest request = request_for(FormatId::megatron);
  expect_refused(source, request, ErrorKind::source, "source.optimizer = \"drop\"");
  request.read.drop_optimizer = true;
  expect_refused(source, request, ErrorKind::source, "source.rng = \"drop\"");
  request.read.drop_rng = true;
  Lines warnings = planned(source, request).warnings;
  std::erase_if(warnings, [](std::string const& text) {
    return text.find("is dropped") == std::string::npos;
  });
  EXPECT_EQ(warnings, (Lines{"optimizer state is dropped (source.optimizer = \"drop\")",
                             "random-generator state is dropped (source.rng = \"drop\")"}));
}

TEST(JobPlanState, OfARunAloneIsDroppedWithAWarning) {
  MadeCheckpoint source = made_megatron(sample_model("llama"));
  source.value.state.inventory.others = {"dataloader"};
  JobPlan const plan = planned(source, request_for(FormatId::megatron));
  EXPECT_EQ(std::ranges::count(plan.warnings,
                               "dropped, because it belongs to one run or layout: dataloader"),
            1);
}

// --- parts that no map knows
// ---------------------------------------------------------------------------------------

TEST(JobPlanWarns, OfATargetForTransformersWithoutTokenizer) {
  auto const told = [](MadeCheckpoint const& source, PlanRequest request) {
    request.read.map = "llama";
    Lines warnings = planned(source, request).warnings;
    std::erase_if(warnings, [](std::string const& text) {
      return text.find("gets no tokenizer") == std::string::npos;
    });
    return warnings;
  };
  SampleModel const sample = sample_model("llama");
  PlanRequest const to_huggingface = request_for(FormatId::huggingface);
  Lines const lacking{
      "the target gets no tokenizer, because the source has none. Copy the model's tokenizer files "
      "into the target, or set target.reference to a folder of this model that has them"};
  EXPECT_EQ(told(made_megatron(sample), to_huggingface), lacking);
  MadeCheckpoint bare = made_huggingface(sample);
  EXPECT_EQ(told(bare, to_huggingface), lacking);
  bare.value.model.beside->sidecars = {"generation_config.json", "special_tokens_map.json"};
  EXPECT_EQ(told(bare, to_huggingface), lacking);
  for (char const* file : {"tokenizer_config.json", "tokenizer.model", "vocab.txt", "spiece.model",
                           "qwen.tiktoken", "tekken.json", "source.spm"}) {
    bare.value.model.beside->sidecars = {"generation_config.json", file};
    EXPECT_EQ(told(bare, to_huggingface), Lines()) << file;
  }
  bare.value.model.beside->sidecars.clear();
  EXPECT_EQ(told(bare, request_for(FormatId::megatron)), Lines()) << "it is no folder to load from";
  EXPECT_EQ(told(bare, request_for(FormatId::hdf5)), Lines());
}

TEST(JobPlanWarns, OfAReferenceWithoutTokenizer) {
  ScratchFolder const scratch("no-tokenizer");
  SampleModel const sample = sample_model("llama");
  write_text_file(scratch.path() / "config.json", sample.config.dump());
  PlanRequest request = request_for(FormatId::huggingface);
  request.options.huggingface.reference = scratch.path().string();
  auto const told = [&] {
    return std::ranges::count_if(
        planned(made_megatron(sample), request).warnings, [&](std::string const& text) {
          return text.find(fmt::format("no tokenizer, because {} has none",
                                       scratch.path().string())) != std::string::npos;
        });
  };
  EXPECT_EQ(told(), 1);
  write_text_file(scratch.path() / "tokenizer.json", "{}");
  EXPECT_EQ(told(), 0);
}

TEST(JobPlanWarns, OfWhatTheSourceWarnedOf) {
  MadeCheckpoint source = made_huggingface(sample_model("llama"));
  source.value.warnings = {"a file was left out"};
  EXPECT_EQ(planned(source, request_for(FormatId::megatron)).warnings.front(),
            "a file was left out");
}

TEST(JobPlanWarns, OfTensorsThatAreTakenForCopies) {
  SampleModel tied;
  for (SampleModel const& sample : sample_models())
    if (sample.family == "llama") tied = sample;  // the last one is tied
  MadeCheckpoint source = made_huggingface(tied);
  EXPECT_EQ(planned(source, request_for(FormatId::megatron)).warnings, Lines());
  source.add_file({{"lm_head.weight", {50, 32}}});
  Lines const warnings = planned(source, request_for(FormatId::megatron)).warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(warnings.front().starts_with("lm_head.weight is a copy of another stored tensor"))
      << warnings[0];
}

/// Megatron's files with a config.json that travelled with them and says something else by now.
MadeCheckpoint with_config_beside(char const* key, Json value) {
  SampleModel const sample = sample_model("llama");
  MadeCheckpoint source = made_megatron(sample);
  source.value.run.args.set("rotary_base", 10000).set("norm_epsilon", 1e-5);
  huggingface::Folder& beside = source.value.model.beside.emplace();
  beside.path = "/made/huggingface";
  beside.config = sample.config;
  beside.config.set("rope_theta", 10000).set("rms_norm_eps", 1e-5).set(key, std::move(value));
  beside.config_text = beside.config.dump(2) + "\n";
  return source;
}

TEST(JobPlanConfig, OfTheTargetSaysWhatArgsSayByNow) {
  JobPlan const plan =
      planned(with_config_beside("rope_theta", 777), request_for(FormatId::huggingface));
  Json const config = parse_json(text_named(plan, "config.json"), "config.json");
  EXPECT_EQ(config.find("rope_theta")->dump(), "10000");
  EXPECT_TRUE(std::ranges::any_of(plan.warnings, [](std::string const& warning) {
    return warning.find("rope_theta was 777, the checkpoint's args give 10000") !=
           std::string::npos;
  })) << fmt::format("{}", fmt::join(plan.warnings, "\n"));
}

TEST(JobPlanConfig, OfAnotherModelIsRefusedWhereItDecides) {
  MadeCheckpoint const source = with_config_beside("intermediate_size", 64);
  expect_refused(source, request_for(FormatId::huggingface), ErrorKind::source, "64");
  Lines const warnings = planned(source, request_for(FormatId::megatron)).warnings;
  EXPECT_TRUE(std::ranges::any_of(warnings, [](std::string const& warning) {
    return warning.find("64") != std::string::npos;
  })) << fmt::format("{}", fmt::join(warnings, "\n"));
}

}  // namespace
}  // namespace reshard::test
