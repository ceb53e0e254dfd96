// Adapters that are of another model, in another form, or have no place in the target.

#include "stages/plan/adapter/adapter_source.hpp"

#include <fstream>

#include "tests/stages/plan/planning.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::test {
namespace {

/// Both matrices of a module of a llama, under the names of peft.
std::vector<MadeTensor> pair_of(std::string const& module, Index out, Index in) {
  std::string const name = "base_model.model." + module;
  return {{name + ".lora_A.weight", {2, in}}, {name + ".lora_B.weight", {out, 2}}};
}

std::vector<MadeTensor> up_pair() { return pair_of("model.layers.0.mlp.up_proj", 48, 24); }

/// A folder of peft with these tensors, for this model.
MadeCheckpoint peft(std::vector<MadeTensor> const& tensors,
                    SampleModel const& sample = sample_model("llama"),
                    FormatId format = FormatId::huggingface) {
  MadeCheckpoint made(format);
  made.add_file(tensors);
  made.value.model.config = sample.config;
  huggingface::Folder& beside = made.value.model.beside.emplace();
  beside.path = made.value.folder;
  beside.config = sample.config;
  beside.config_text = sample.config.dump();
  beside.adapter = Json()
                       .set("peft_type", "LORA")
                       .set("r", std::int64_t{2})
                       .set("lora_alpha", std::int64_t{4})
                       .set("target_modules", "all-linear");
  return made;
}

/// Megatron-Bridge's adapter of the gate and up projections, for a model with these args.
MadeCheckpoint bridge(SampleModel const& sample, Index layers, DType dtype = DType::bf16) {
  MadeCheckpoint made(FormatId::torch_dist);
  std::string const name = "decoder.layers.mlp.linear_fc1.adapter.linear_";
  made.add_file({{name + "in.weight", {layers, 2, 24}, dtype},
                 {name + "out.weight", {layers, 96, 2}, dtype}});
  made.value.run.args = sample.args;
  made.value.run.iteration = made.value.run.stated_iteration = 7;
  return made;
}

MadeCheckpoint with_adapter(MadeCheckpoint base, MadeCheckpoint const& adapter) {
  base.value.others.adapter = std::make_shared<Checkpoint const>(adapter.value);
  for (std::size_t f = 0; f < adapter.value.files.size(); ++f) {
    base.value.files.push_back(adapter.value.files[f]);
    base.value.stamps.taken.push_back(adapter.value.stamps.taken[f]);
  }
  return base;
}

SampleModel tied_llama() {
  SampleModel sample = sample_model("llama");
  sample.config.set("tie_word_embeddings", true);
  sample.args.set("untie_embeddings_and_output_weights", false);
  return sample;
}

TEST(AdapterRefuses, WhatBelongsToNoWeightThatAnAdapterCanHave) {
  auto const with = [](std::vector<MadeTensor> more) {
    std::vector<MadeTensor> tensors = up_pair();
    tensors.insert(tensors.end(), more.begin(), more.end());
    return tensors;
  };
  struct Case {
    MadeCheckpoint source;
    char const* words;
  };
  for (Case const& one : std::vector<Case>{
           {peft(pair_of("lm_head", 50, 24), tied_llama()),
            "adapts 'lm_head', which is tied to the embedding"},
           {peft(with(pair_of("model.norm", 24, 24))),
            "adapts 'model.norm', which no map describes as a linear layer"},
           {peft(with(pair_of("model.layers.0.mlp.experts.base_layer", 48, 24))),
            "adapts a parameter of 'model.layers.0.mlp.experts', and target_parameters of "
            "adapter_config.json (empty) does not list it"},
           {peft(with({{"base_model.model.model.embed_tokens.base_layer.weight", {50, 24}}})),
            "holds 'base_model.model.model.embed_tokens.base_layer.weight', a copy of a weight"},
           {peft({{"model.layers.0.mlp.up_proj.adapter.linear_in.weight", {2, 24}}}),
            "is part of an adapter whose names no [adapter] of mcore.toml has"}})
    expect_refused(one.source, request_for(FormatId::megatron), ErrorKind::source, one.words);
}

TEST(AdapterRefuses, OneExpertWhereAllAreJoined) {
  SampleModel const sample = sample_model("qwen3_moe");
  for (StoredTensor const& tensor : made_huggingface(sample).value.stored.tensors) {
    std::string const name = tensor.name;
    if (!name.ends_with("experts.1.up_proj.weight")) continue;
    std::string const module = name.substr(0, name.rfind('.'));
    expect_refused(peft(pair_of(module, tensor.shape[0], tensor.shape[1]), sample),
                   request_for(FormatId::torch_dist), ErrorKind::source,
                   "1 of the 8 weights that the same line of the map describes have an adapter");
    return;
  }
  ADD_FAILURE() << "no expert";
}

TEST(AdapterRefuses, RowsThatPartsCannotDescribe) {
  SampleModel sample = sample_model("llama");
  sample.config.set("intermediate_size", std::int64_t{46});
  std::vector<MadeTensor> tensors = pair_of("model.layers.0.mlp.up_proj", 46, 24);
  PlanRequest request = request_for(FormatId::torch_dist, {.tp = 2});
  request.options.named.adapter.form = "bridge";
  request.options.named.adapter.apart = true;
  expect_refused(peft(tensors, sample), request, ErrorKind::usage,
                 "are in an order that parts of axis 'inter' (size 46) cannot describe");
}

TEST(AdapterRefuses, MatricesOfOneTensorThatAreCutDifferently) {
  MadeCheckpoint made(FormatId::torch_dist);
  std::string const name = "decoder.layers.mlp.linear_fc1.adapter.adapter_";
  made.add_file({{name + "gate.linear_in.weight", {6, 2, 24}},
                 {name + "gate.linear_out.weight", {6, 48, 2}},
                 {name + "up.linear_out.weight", {6, 48, 2}}});
  made.add_cut({name + "up.linear_in.weight", {6, 2, 24}}, {1, 2, 1});
  made.value.run.args = sample_model("llama").args;
  made.value.run.iteration = made.value.run.stated_iteration = 7;
  PlanRequest request = request_for(FormatId::megatron);
  request.options.named.adapter.form = "bridge";
  request.options.named.adapter.apart = false;
  request.read.lora_alpha = "4";
  expect_refused(made, request, ErrorKind::source, "are stored differently, so they cannot be");
}

TEST(AdapterRefuses, TargetsThatHaveNoPlaceForIt) {
  for (FormatId const format : {FormatId::fsdp_dtensor, FormatId::hdf5})
    expect_refused(peft(up_pair()), request_for(format), ErrorKind::usage,
                   "a LoRA adapter goes between huggingface (a folder of peft), megatron and");
}

TEST(AdapterRefuses, WhatTheMapLeavesOut) {
  ScratchFolder const scratch("adapter_left_out");
  std::filesystem::path const map = scratch.path() / "own.toml";
  std::ofstream(map) << "base = \"llama\"\ndrop = [ \"*lora_*\" ]\n";
  PlanRequest request = request_for(FormatId::megatron);
  request.read.map = map.string();
  expect_refused(peft(pair_of("model.norm", 24, 24)), request, ErrorKind::source,
                 "holds an adapter (LoRA), and the map leaves out all of its 2 tensors (drop)");
}

TEST(AdapterRefuses, APartThatTheMapCopies) {
  ScratchFolder const scratch("adapter_of_a_tower");
  std::filesystem::path const map = scratch.path() / "own.toml";
  std::ofstream(map) << "base = \"llama\"\nkeep = [ \"vision_tower.*\" ]\n";
  PlanRequest request = request_for(FormatId::megatron);
  request.read.map = map.string();
  expect_refused(peft(pair_of("vision_tower.layers.0.q_proj", 24, 24)), request, ErrorKind::source,
                 "a part of the model that the map copies as it is (`keep`)");
}

TEST(AdapterRefuses, MergingOneOfAnotherModel) {
  struct Case {
    MadeCheckpoint adapter;
    char const* words;
  };
  SampleModel longer = sample_model("llama");
  longer.args.set("num_layers", std::int64_t{8});
  MadeCheckpoint const base = made_huggingface(sample_model("llama"));
  PlanRequest request = request_for(FormatId::megatron);
  request.read.lora_alpha = "4";
  for (Case const& one : std::vector<Case>{
           {bridge(longer, 8), "has layer 8, but the model has 6. Name the adapter of this base"},
           {bridge(sample_model("llama"), 6, DType::f8_e4m3), "expected F32, BF16 or F16"}})
    expect_refused(with_adapter(base, one.adapter), request, ErrorKind::source, one.words);
  expect_refused(
      with_adapter(made_huggingface(sample_model("qwen3_moe")), bridge(sample_model("llama"), 6)),
      request, ErrorKind::source, "', which the model does not have. Name the adapter of");
}

TEST(AdapterRefuses, MergingIntoQuantisedWeights) {
  PlanRequest request = request_for(FormatId::megatron);
  request.read.lora_alpha = "4";
  MadeCheckpoint const base = made_fp8(sample_model("llama"));
  expect_refused(with_adapter(base, peft(up_pair())), request, ErrorKind::source,
                 "adapts 'model.layers.0.mlp.up_proj', which is quantised in the base");
  expect_refused(with_adapter(base, bridge(sample_model("llama"), 6)), request, ErrorKind::source,
                 "adapts 'ffn.gate', which is quantised, and an adapter is merged into");
}

TEST(AdapterRefuses, MagnitudesThatDoNotLieBesideTheirMatrix) {
  std::string const up = "base_model.model.model.layers.0.mlp.up_proj";
  MadeTensor const magnitude{up + ".lora_magnitude_vector", {48}};
  std::vector<MadeTensor> two = pair_of("model.layers.0.mlp.gate_proj", 48, 24);
  for (MadeTensor const& tensor : up_pair()) two.push_back(tensor);
  two.push_back(magnitude);
  MadeCheckpoint cut =
      peft({{up + ".lora_A.weight", {2, 24}}, magnitude}, sample_model("llama"), FormatId::dcp);
  cut.add_cut({up + ".lora_B.weight", {48, 2}}, {2, 1});
  MadeCheckpoint const base = made_huggingface(sample_model("llama"));
  auto const refuse = [&](MadeCheckpoint adapter, bool dora, std::string const& words) {
    adapter.value.model.beside->adapter.set("use_dora", dora);
    expect_refused(with_adapter(base, adapter), request_for(FormatId::megatron), ErrorKind::source,
                   words);
  };
  refuse(peft(two), true,
         "gate_proj.lora_B.weight' and no 'base_model.model.model.layers.0.mlp.gate_proj.lora_"
         "magnitude_vector', the magnitude of the same module");
  refuse(cut, true, "' is cut otherwise than '" + up + ".lora_B.weight'. Convert");
  std::vector<MadeTensor> wide = up_pair();
  wide.push_back({up + ".lora_magnitude_vector", {48}, DType::f64});
  refuse(peft(wide), true, "' is F64, expected magnitudes of F32, BF16 or F16");
  refuse(peft(two), false, "states use_dora = false, and the adapter has magnitudes");
}

TEST(AdapterRefuses, MergingWhatIsMoreThanAnAdapter) {
  MadeCheckpoint adapter = peft(up_pair());
  adapter.add_file({{"model.norm.weight", {24}}});
  adapter.value.model.beside.reset();
  PlanRequest request = request_for(FormatId::megatron);
  request.read.lora_alpha = "4";
  expect_refused(with_adapter(made_huggingface(sample_model("llama")), adapter), request,
                 ErrorKind::source, "holds tensors that are not of an adapter (LoRA)");
}

TEST(AdapterRefuses, MergingIntoWeightsWithOptimizerState) {
  MadeCheckpoint base = made_torch_dist(sample_model("llama"), true);
  std::vector<MadeTensor> states;
  for (StoredTensor const& tensor : base.value.stored.tensors)
    states.push_back(
        {fmt::format("optimizer.state.exp_avg.{}", tensor.name), tensor.shape, DType::f32});
  base.add_file(states);
  base.value.model.beside.emplace().config = sample_model("llama").config;
  expect_refused(with_adapter(base, peft(up_pair())), request_for(FormatId::torch_dist),
                 ErrorKind::source,
                 "holds optimizer state, which belongs to the weights before the adapter");
}

TEST(AdapterRefuses, ATargetForMegatronBridge) {
  PlanRequest request = request_for(FormatId::torch_dist);
  request.options.named.program = megatron::TargetProgram::megatron_bridge;
  expect_refused(bridge(sample_model("llama"), 6), request, ErrorKind::usage,
                 "settings for a LoRA adapter cannot be made");
}

}  // namespace
}  // namespace reshard::test
