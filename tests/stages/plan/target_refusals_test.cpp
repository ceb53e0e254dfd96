// Targets that a source cannot become, and what they are refused with.

#include "core/base/text/json.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

/// torch_dist with Adam's state of every weight, but for what `lacks` names, in the dtype that
/// `dtype_of` gives.
MadeCheckpoint adam(std::function<bool(std::string const&)> const& lacks,
                    std::function<DType(std::string const&)> const& dtype_of = nullptr) {
  MadeCheckpoint source = made_torch_dist(sample_model("llama"), true);
  std::vector<MadeTensor> states;
  for (StoredTensor const& tensor : source.value.stored.tensors)
    for (char const* slot : {"param", "exp_avg", "exp_avg_sq"}) {
      std::string const name = fmt::format("optimizer.state.{}.{}", slot, tensor.name);
      if (!lacks(name))
        states.push_back({name, tensor.shape, dtype_of ? dtype_of(name) : DType::f32});
    }
  source.add_file(states);
  return source;
}

PlanRequest megatron_with(megatron::OptimizerFiles files) {
  PlanRequest request = request_for(FormatId::megatron);
  request.options.megatron.optimizer = files;
  return request;
}

TEST(TargetRefuses, StateThatAWeightLacks) {
  std::string const norm = "decoder.final_layernorm.weight";
  expect_refused(adam([&](std::string const& name) {
                   return name.ends_with("." + norm) && name.find(".exp_avg") != std::string::npos;
                 }),
                 megatron_with(megatron::OptimizerFiles::distributed), ErrorKind::source,
                 "which distrib_optim.pt holds for every parameter. It was frozen");
  expect_refused(
      adam([&](std::string const& name) { return name == "optimizer.state.param." + norm; }),
      megatron_with(megatron::OptimizerFiles::in_model_files), ErrorKind::source,
      "has no master weight, which model_optim_rng.pt holds for every BF16 weight");
}

TEST(TargetRefuses, StateOfAnotherDtypeThanDistribOptimHas) {
  auto const nothing = [](std::string const&) { return false; };
  expect_refused(adam(nothing,
                      [](std::string const& name) {
                        return name.find(".exp_avg.") != std::string::npos ? DType::bf16
                                                                           : DType::f32;
                      }),
                 megatron_with(megatron::OptimizerFiles::distributed), ErrorKind::source,
                 "is BF16, and distrib_optim.pt holds F32");
}

/// The source with each tensor as `change` makes it, or without it.
MadeCheckpoint changed(SampleModel const& sample,
                       std::function<bool(MadeTensor& tensor)> const& change) {
  MadeCheckpoint const from = made_huggingface(sample);
  std::vector<MadeTensor> tensors;
  for (StoredTensor const& one : from.value.stored.tensors) {
    MadeTensor tensor{one.name, one.shape, one.dtype};
    if (change(tensor)) tensors.push_back(std::move(tensor));
  }
  MadeCheckpoint result(FormatId::huggingface);
  result.add_file(tensors);
  result.value.model.config = from.value.model.config;
  result.value.model.config_text = from.value.model.config_text;
  result.value.model.beside = from.value.model.beside;
  return result;
}

TEST(TargetRefuses, AFusedTensorOfTwoDtypes) {
  MadeCheckpoint const source = changed(sample_model("llama"), [](MadeTensor& tensor) {
    if (tensor.name.ends_with("q_proj.weight")) tensor.dtype = DType::f32;
    return true;
  });
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source,
                 "of the target holds both. Save them with one dtype");
}

TEST(TargetRefuses, ATensorThatNothingOfTheSourceHolds) {
  MapFile const family = map_file("llama");
  Model const model(family, map_file("mcore"), {sample_model("llama").config, "config.json", 0});
  Side const side(model, family, {});
  TargetParts parts;
  parts.model = &model;
  parts.side = &side;
  parts.dtypes.resize(model.tensors().size());
  std::string const sentence =
      refused(ErrorKind::source, [&] { stored_dtype(parts, side.names(nullptr).front()); });
  EXPECT_NE(sentence.find("source: no stored tensor holds '"), std::string::npos) << sentence;
}

TEST(TargetRefuses, ElementsSmallerThanAByte) {
  MadeCheckpoint const source = changed(sample_model("llama"), [](MadeTensor& tensor) {
    if (tensor.name == "model.norm.weight") tensor.dtype = DType::f4;
    return true;
  });
  expect_refused(source, request_for(FormatId::huggingface), ErrorKind::source,
                 "is F4, elements smaller than a byte cannot be resharded");
}

TEST(TargetRefuses, AnAxisThatNoRuleSplits) {
  PlanRequest request = request_for(FormatId::torch_dist);
  request.target.mesh = Mesh({{"tp", 1}, {"pp", 1}, {"vpp", 1}, {"ep", 1}, {"etp", 1}, {"cp", 2}});
  expect_refused(made_huggingface(sample_model("llama")), request, ErrorKind::usage,
                 "[target] layout.cp = 2: no rule of mcore.toml splits this model along it");
}

TEST(TargetRefuses, FsdpNamesOfPredictionLayersThatNothingStates) {
  std::filesystem::path const published =
      std::filesystem::path(RESHARD_SOURCE_DIR) / "tests/data/configs/deepseek-v3.json";
  SampleModel sample{"deepseek_v3", parse_json(read_text_file(published, 1 << 20), "config"), {}};
  sample.config.set("num_hidden_layers", 2)
      .set("first_k_dense_replace", 1)
      .set("n_routed_experts", 8)
      .set("quantization_config", Json());
  expect_refused(made_huggingface(sample), request_for(FormatId::fsdp_dtensor), ErrorKind::usage,
                 "the model has multi-token prediction, whose inner layer");
}

TEST(TargetRefuses, ArgsThatCountLayersWhereTheyAreCountedAnew) {
  SampleModel sample = sample_model("qwen3");
  sample.args.set("window_attn_skip_freq", 2);
  PlanRequest request = request_for(FormatId::megatron);
  request.options.named.model = megatron::TargetModel::hybrid;
  expect_refused(made_megatron(sample), request, ErrorKind::usage,
                 "args.window_attn_skip_freq = 2 counts layers");
}

}  // namespace
}  // namespace reshard::test
