// What no plan is made of, with which exit code.

#include <fstream>

#include "core/base/capture.hpp"
#include "core/base/text/text.hpp"
#include "tests/stages/plan/planning.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::test {
namespace {

/// Changes the stored tensor of this name.
template <class With>
void change_tensor(MadeCheckpoint& made, std::string_view name, With const& with) {
  StoredTensors& tensors = made.value.stored.tensors;
  auto const found =
      std::ranges::find_if(tensors, [&](StoredTensor const& one) { return one.name == name; });
  RESHARD_EXPECT(found != tensors.end());
  tensors.change(static_cast<std::size_t>(found - tensors.begin()), with);
}

// --- refusals of tensors
// -------------------------------------------------------------------------------------------

TEST(JobPlanRefuses, ATensorThatIsMissing) {
  MadeCheckpoint source = made_huggingface(sample_model("llama"));
  source.value.stored.tensors.keep_if([](StoredTensor const& tensor) {
    return tensor.name != "model.layers.3.mlp.down_proj.weight";
  });
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source,
                 "model.layers.3.mlp.down_proj.weight");
}

TEST(JobPlanRefuses, ATensorThatNothingExplains) {
  MadeCheckpoint source = made_huggingface(sample_model("llama"));
  source.add_file({{"model.layers.0.vision.weight", {4}}});
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source,
                 "model.layers.0.vision.weight");
}

TEST(JobPlanRefuses, ALayerBeyondTheConfig) {
  MadeCheckpoint source = made_huggingface(sample_model("llama"));
  source.add_file({{"model.layers.6.mlp.down_proj.weight", {24, 48}}});
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source,
                 "is beyond the sizes of config.json");
}

TEST(JobPlanRefuses, AnotherShape) {
  MadeCheckpoint source = made_huggingface(sample_model("llama"));
  change_tensor(source, "model.norm.weight", [](StoredTensor& norm) { norm.shape = {25}; });
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source, "[25]");
}

TEST(JobPlanRefuses, SharesThatDoNotMakeAWhole) {
  MadeCheckpoint source = made_megatron(sample_model("llama"), {{.tp = 2, .etp = 2}});
  SharePlace& last = source.value.shares.places.back();
  last.at = source.value.shares.places.front().at;  // both files are of the first rank
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source, "");
}

TEST(JobPlanRefuses, AMatrixOfAnAdapterWithoutTheOther) {
  MadeCheckpoint source(FormatId::huggingface);
  source.add_file({{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", {8, 24}}});
  source.value.model.config = sample_model("llama").config;
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source, "lora_B");
}

TEST(JobPlanRefuses, WeightsThatAnAdapterIsWrappedAround) {
  MadeCheckpoint source = made_torch_dist(sample_model("llama"), true);
  source.add_file({{"decoder.layers.mlp.linear_fc1.to_wrap.weight", {6, 96, 24}}});
  expect_refused(source, request_for(FormatId::huggingface), ErrorKind::source, ".to_wrap.");
}

TEST(JobPlanRefuses, AReferenceOfAnotherFamily) {
  ScratchFolder const scratch("other_family");
  Json config = sample_model("qwen3_moe").config;
  std::ofstream(scratch.path() / "config.json") << config.set("model_type", "llama").dump();
  PlanRequest request = request_for(FormatId::huggingface);
  request.options.huggingface.reference = scratch.path().string();
  MadeCheckpoint const source = made_megatron(sample_model("qwen3_moe"), {{.tp = 2, .etp = 2}});
  std::string const sentence = refused(ErrorKind::usage, [&] { planned(source, request); });
  EXPECT_NE(
      sentence.find("has the model_type 'llama', and the source is a model of qwen3_moe.toml"),
      std::string::npos)
      << sentence;
}

TEST(JobPlanRefuses, MegatronWhereTheMapSaysThatTheModelHasNoFormThere) {
  ScratchFolder const scratch("no_megatron");
  std::filesystem::path const map = scratch.path() / "own.toml";
  std::ofstream(map)
      << "base = \"llama\"\nlet = { no_megatron = \"'its layers are of another kind'\" }\n";
  auto const with_map = [&](FormatId format) {
    PlanRequest request = request_for(format);
    request.read.map = map.string();
    return request;
  };
  MadeCheckpoint const folder = made_huggingface(sample_model("llama"));
  for (FormatId const format : {FormatId::megatron, FormatId::torch_dist})
    expect_refused(folder, with_map(format), ErrorKind::usage, "its layers are of another kind");
  EXPECT_FALSE(planned(folder, with_map(FormatId::hdf5)).target.blobs.empty());

  MadeCheckpoint const tree = made_megatron(sample_model("llama"));
  expect_refused(tree, with_map(FormatId::huggingface), ErrorKind::usage,
                 "[source] path: own.toml describes no Megatron names for this model");
}

TEST(JobPlanRefuses, ASourceWithADefect) {
  MadeCheckpoint source = made_megatron(sample_model("llama"));
  source.value.shares.defects = {"a tensor is not there."};
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source,
                 "a tensor is not there.");
}

TEST(JobPlanRefuses, ASourceThatDoesNotSayWhatModelItHolds) {
  MadeCheckpoint source = made_huggingface(sample_model("llama"));
  source.value.model.config = Json();
  source.value.model.beside.reset();
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source, "has no config.json");
  MadeCheckpoint megatron = made_megatron(sample_model("llama"));
  megatron.value.run.args = Json();
  expect_refused(megatron, request_for(FormatId::megatron), ErrorKind::source, "has no args");
  MadeCheckpoint distributed = made_torch_dist(sample_model("llama"), true);
  distributed.value.run.args = Json();
  expect_refused(
      distributed, request_for(FormatId::megatron), ErrorKind::source,
      "has neither common.pt nor args in another place, so nothing here describes the model");
}

// --- refusals of sizes
// ---------------------------------------------------------------------------------------------

TEST(JobPlanRefuses, SizesThatDoNotDivide) {
  struct Case {
    MeshSizes mesh;
    char const* says;
  };
  MadeCheckpoint const source = made_huggingface(sample_model("qwen3_moe"));
  for (Case const& one : std::vector<Case>{{{.ep = 3}, "3"},
                                           {{.tp = 3, .etp = 3}, "3"},
                                           {{.pp = 4}, "4"},
                                           {{.tp = 4, .etp = 3}, "3"}})
    expect_refused(source, request_for(FormatId::megatron, one.mesh), ErrorKind::usage, one.says);
}

TEST(JobPlanRefuses, ExpertRanksWithoutExperts) {
  expect_refused(made_huggingface(sample_model("llama")),
                 request_for(FormatId::megatron, {.ep = 2}), ErrorKind::usage,
                 "[target] layout.ep = 2: the model has 0 experts");
}

TEST(JobPlanRefuses, StagesThatLayersDoNotFillUnderTheirKeyWithThoseThatFit) {
  MadeCheckpoint const llama = made_huggingface(sample_model("llama"));
  expect_refused(llama, request_for(FormatId::megatron, {.pp = 4}), ErrorKind::usage,
                 "[target] layout.pp = 4: pipeline: 6 decoder layers cannot be spread evenly over "
                 "4 chunks. Sizes of pp that fit: 1, 2, 3, 6. ");
  expect_refused(llama, request_for(FormatId::torch_dist, {.pp = 4}), ErrorKind::usage,
                 "[target] layout.pp = 4: ");
  expect_refused(llama, request_for(FormatId::megatron, {.pp = 2, .vpp = 2}), ErrorKind::usage,
                 "[target] layout.vpp = 2: pipeline: 6 decoder layers cannot be spread evenly over "
                 "4 chunks. Sizes of pp that fit with vpp = 2: 3. Sizes of vpp that fit with pp = "
                 "2: 1, 3. ");
  PlanRequest uneven = request_for(FormatId::megatron, {.pp = 2});
  uneven.target.pipeline.layout = "Et|tL";
  expect_refused(llama, uneven, ErrorKind::usage, "[target] layout.pipeline: ");
}

TEST(JobPlanRefuses, SizesThatDoNotFitAndListsThoseThatDo) {
  for (char const* family : {"llama", "qwen3", "qwen3_moe"})
    for (FormatId const format : {FormatId::megatron, FormatId::torch_dist}) {
      MadeCheckpoint const source = made_huggingface(sample_model(family));
      std::vector<std::string> fit;
      std::string refusal;
      for (int tp = 1; tp <= 24; ++tp) {
        auto const error =
            capture([&] { planned(source, request_for(format, {.tp = tp, .etp = 1})); });
        if (!error)
          fit.push_back(std::to_string(tp));
        else if (tp == 5)
          refusal = error->sentence();
      }
      ASSERT_GT(fit.size(), 2U) << family;
      EXPECT_NE(refusal.find("Sizes that fit: " + listed(fit, 16) + ". Choose"), std::string::npos)
          << family << ": " << refusal << " / " << listed(fit, 16);
    }
}

TEST(JobPlanRefuses, LayersInOneKeyThatAreNotAlike) {
  SampleModel mixed;
  for (SampleModel const& sample : sample_models())
    if (sample.family == "qwen3_moe") mixed = sample;  // the last one has dense layers too
  PlanRequest request = request_for(FormatId::torch_dist);
  request.options.dist.layers = dcp::LayerKeys::stacked;
  expect_refused(made_huggingface(mixed), request, ErrorKind::usage,
                 "the model's layers are not all alike");
  request.options.named.model = megatron::TargetModel::hybrid;
  expect_refused(made_huggingface(sample_models().front()), request, ErrorKind::usage,
                 "Megatron-Core keeps the layers of a hybrid model apart");
}

TEST(JobPlanRefuses, AHybridModelAsGpt) {
  SampleModel hybrid;
  hybrid.family = "mamba2";
  hybrid.config = Json::object();
  hybrid.config.set("model_type", "mamba2").set("num_hidden_layers", 2).set("hidden_size", 16);
  hybrid.config.set("num_heads", 4).set("head_dim", 8).set("n_groups", 1).set("state_size", 4);
  hybrid.config.set("vocab_size", 32);
  PlanRequest request = request_for(FormatId::torch_dist);
  request.options.named.model = megatron::TargetModel::gpt;
  expect_refused(made_huggingface(hybrid), request, ErrorKind::usage,
                 "the layers of this model are those of Megatron-Core's HybridModel");
}

TEST(JobPlanRefuses, AVocabularyThatIsSmallerThanTheArgsSay) {
  PlanRequest request = request_for(FormatId::megatron);
  request.read.true_vocab_size = 40;
  expect_refused(made_megatron(sample_model("llama")), request, ErrorKind::usage,
                 "[model] true_vocab_size = 40: the checkpoint's args give vocab_size = 50");
}

// --- refusals of keys
// ----------------------------------------------------------------------------------------------

TEST(JobPlanRefuses, KeysThatDoNotFitTheSource) {
  MadeCheckpoint const source = made_huggingface(sample_model("llama"));
  PlanRequest request = request_for(FormatId::megatron);
  request.read.prefix = "model.";
  expect_refused(source, request, ErrorKind::usage, "[source] prefix = \"model.\"");
  request = request_for(FormatId::megatron);
  request.read.etp = 2;
  expect_refused(source, request, ErrorKind::usage, "[source] etp = 2");
  request = request_for(FormatId::megatron);
  request.read.map = "no_such_family";
  expect_refused(source, request, ErrorKind::usage, "no_such_family");
}

TEST(JobPlanRefuses, TargetsWithoutNamesForTheSource) {
  MadeCheckpoint const source = made_megatron(sample_model("llama"));
  expect_refused(source, request_for(FormatId::dcp), ErrorKind::usage, "[target] format = \"dcp\"");
  PlanRequest request = request_for(FormatId::huggingface);
  request.read.map = "none";
  expect_refused(source, request, ErrorKind::usage, "[model] map = \"none\"");
}

}  // namespace
}  // namespace reshard::test
