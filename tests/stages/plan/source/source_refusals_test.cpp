// Sources that their maps, configs and jobs do not describe.

#include <fstream>

#include "core/formats/huggingface/folder.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "stages/plan/source/catalog/dequantised.hpp"
#include "stages/plan/source/facts/made_config.hpp"
#include "stages/plan/source/facts/vocabulary.hpp"
#include "stages/plan/source/logical_source.hpp"
#include "stages/plan/source/names/tower_entries.hpp"
#include "stages/plan/source/state/flat_states.hpp"
#include "stages/plan/source/state/trained_parameters.hpp"
#include "tests/stages/plan/planning.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::test {
namespace {

MadeCheckpoint llama_folder() { return made_huggingface(sample_model("llama")); }

/// The tensors of a made checkpoint, each name and dtype as the function gives it; "" leaves one
/// out.
template <class Change>
std::vector<MadeTensor> changed(MadeCheckpoint const& made, Change&& change) {
  std::vector<MadeTensor> tensors;
  for (StoredTensor const& one : made.value.stored.tensors) {
    MadeTensor tensor{one.name, one.shape, one.dtype};
    change(tensor);
    if (!tensor.name.empty()) tensors.push_back(tensor);
  }
  return tensors;
}

MadeCheckpoint made_of(FormatId format, std::vector<MadeTensor> const& tensors, Json config) {
  MadeCheckpoint made(format);
  made.add_file(tensors);
  made.value.model.config = std::move(config);
  return made;
}

// --- names ------------------------------------------------------------------------------------

TEST(SourceRefuses, NamesThatAreLackingOrOfAnotherForm) {
  MadeCheckpoint promised = made_of(FormatId::huggingface,
                                    changed(llama_folder(),
                                            [](MadeTensor& one) {
                                              if (one.name == "model.norm.weight") one.name = "";
                                            }),
                                    sample_model("llama").config);
  promised.value.index.promised = {SharedText("model.norm.weight")};
  expect_refused(promised, request_for(FormatId::megatron), ErrorKind::source,
                 "lacks 'model.norm.weight', which decoder.toml");
  expect_refused(promised, request_for(FormatId::megatron), ErrorKind::source,
                 "The index lists it, and its file does not hold it");

  MadeCheckpoint const wrapped =
      made_of(FormatId::huggingface,
              changed(llama_folder(), [](MadeTensor& one) { one.name = "net." + one.name; }),
              sample_model("llama").config);
  expect_refused(wrapped, request_for(FormatId::megatron), ErrorKind::source,
                 "with 'net.'. Name a map that has these names with model.map");
}

TEST(SourceRefuses, TwoNamesOfOneTensor) {
  MadeCheckpoint source = made_torch_dist(sample_model("llama"), true);
  source.add_file({{"decoder.layers.input_layernorm.weight", {6, 24}}});
  expect_refused(source, request_for(FormatId::megatron), ErrorKind::source,
                 "'decoder.layers.input_layernorm.weight' are two names of one tensor");
}

TEST(SourceRefuses, AModelThatNothingNames) {
  MadeCheckpoint const source = made_of(FormatId::dcp, {{"model.norm.weight", {24}}}, Json());
  PlanRequest request = request_for(FormatId::megatron);
  request.read.map = "llama";
  expect_refused(source, request, ErrorKind::usage, "does not state which model it holds");
}

TEST(SourceRefuses, AnOutputLayerThatTheConfigTiesToTheEmbedding) {
  ScratchFolder const scratch("tied_reference");
  Json config = sample_model("llama").config;
  std::ofstream(scratch.path() / "config.json") << config.set("tie_word_embeddings", true).dump();
  PlanRequest request = request_for(FormatId::huggingface);
  request.options.huggingface.reference = scratch.path().string();
  expect_refused(made_megatron(sample_model("llama")), request, ErrorKind::source,
                 "the checkpoint has its own output layer");
}

// --- quantised weights ------------------------------------------------------------------------

QuantScheme scheme_of(std::string const& codes, std::vector<std::string> const& parts) {
  QuantScheme scheme;
  scheme.name = "own";
  scheme.decode.codes = codes;
  for (std::string const& part : parts) {
    QuantPart one;
    one.name = part;
    one.dims.resize(2, PartDim{PartDim::Kind::one});
    scheme.parts.push_back(one);
  }
  return scheme;
}

TEST(SourceRefuses, ValuesThatCannotBeComputed) {
  auto const expect = [](QuantScheme const& scheme, std::string_view words) {
    QuantMatch match;
    for (QuantPart const& part : scheme.parts) match.stored_parts.push_back(part.name);
    expect_refused(ErrorKind::usage, words, [&] {
      dequantised(scheme, match, "w", {4, 4}, [](std::string const& part) {
        return std::optional(
            StoredPlace{0, 0, DType::f8_e4m3,
                        part == "codes" ? std::vector<Index>{4, 4} : std::vector<Index>{2, 1}});
      });
    });
  };
  expect(scheme_of("e3m4", {"codes"}), "'w': values of the scheme own cannot be computed");
  expect(scheme_of("e4m3", {"codes", "scale"}), "'w' holds several weights with a scale each");
}

/// FP8 codes with one scale for each tile of 16 x 16.
MadeCheckpoint fp8_model(FormatId format) {
  Json config = sample_model("qwen3").config;
  config.set(
      "quantization_config",
      Json().set("quant_method", "fp8").set("weight_block_size", Json::array().push(16).push(16)));
  std::vector<MadeTensor> tensors;
  for (MadeTensor tensor : changed(made_huggingface(sample_model("qwen3")), [](MadeTensor&) {})) {
    if (tensor.name.ends_with("proj.weight")) {
      tensor.dtype = DType::f8_e4m3;
      tensors.push_back({tensor.name + "_scale_inv",
                         {(tensor.shape[0] + 15) / 16, (tensor.shape[1] + 15) / 16},
                         DType::f32});
    }
    tensors.push_back(tensor);
  }
  return made_of(format, tensors, config);
}

TEST(SourceRefuses, DequantisingBoxes) {
  for (auto const& [format, words] :
       {std::pair(FormatId::megatron, "holds boxes of tensors. Dequantise the Hugging Face"),
        std::pair(FormatId::huggingface, "holds boxes of quantised tensors ('model.layers.0.")}) {
    PlanRequest request = request_for(format);
    request.read.map = "qwen3";
    request.read.dequantise = true;
    expect_refused(fp8_model(FormatId::dcp), request, ErrorKind::usage, words);
  }
}

/// torch_dist with further tensors, and args without a value.
MadeCheckpoint with_more(MadeCheckpoint made, std::vector<MadeTensor> const& tensors,
                         char const* without) {
  made.add_file(tensors);
  made.value.run.args.set(without, Json());
  return made;
}

TEST(SourceRefuses, RowsWhoseOrderNothingStates) {
  MadeCheckpoint const plain = made_torch_dist(sample_model("llama"), true);
  std::string const name = "decoder.layers.self_attention.linear_qkv.weight";
  auto const weight = std::ranges::find_if(
      plain.value.stored.tensors, [&](StoredTensor const& one) { return one.name == name; });
  ASSERT_NE(weight, plain.value.stored.tensors.end());
  std::vector<MadeTensor> const numbers{
      {name + "_quantizer._amax", {weight->shape[0], weight->shape[1], 1}, DType::f32}};
  expect_refused(with_more(plain, numbers, "tensor_model_parallel_size"),
                 request_for(FormatId::torch_dist), ErrorKind::source,
                 "depends on the tensor parallelism of the run that saved them");
}

TEST(SourceRefuses, MoreBuffersThanTheLayoutHas) {
  std::vector<MadeTensor> buffers;
  for (int buffer : {0, 1})
    for (char const* slot : {"param", "exp_avg", "exp_avg_sq"})
      buffers.push_back(
          {fmt::format("optimizer.distributed.dp_group_idx_0.gbuf_idx_{}.dtype_(torch.bfloat16, "
                       "torch.bfloat16).bucket_idx_0.{}",
                       buffer, slot),
           {64},
           DType::f32});
  expect_refused(with_more(made_torch_dist(sample_model("llama"), true), buffers, "not_an_arg"),
                 request_for(FormatId::torch_dist), ErrorKind::source,
                 "group 0 of optimizer 0 has 2 buffers");
}

// --- containers of logical tensors ------------------------------------------------------------

TEST(SourceRefuses, AContainerThatItsConfigDoesNotDescribe) {
  MadeCheckpoint made(FormatId::hdf5);
  SourceModel nothing;
  expect_refused(ErrorKind::source, "holds neither config.json nor args.json",
                 [&] { read_logical_facts(made.value, nothing); });

  MapFile const family = map_file("llama");
  MapFile const core = map_file("mcore");
  auto const catalogued = [&](MadeCheckpoint const& container) {
    SourceModel read;
    read.names.maps.core = core;
    read.names.maps.family = family;
    read.model = std::make_unique<Model>(
        family, core, ModelFacts{sample_model("llama").config, "config.json", 0});
    with_logical_catalogue(std::move(read), container.value);
  };
  made.value.logical.map = "llama.toml";
  expect_refused(ErrorKind::source, "lacks '", [&] { catalogued(made); });
  made.add_file({{"strange", {3}}});
  made.value.logical.labels.push_back({{"hidden"}, ""});
  expect_refused(ErrorKind::source,
                 "holds 'strange', a tensor that the map 'llama.toml' does not define",
                 [&] { catalogued(made); });
}

// --- maps -------------------------------------------------------------------------------------

TEST(SourceRefuses, MapsThatDoNotFit) {
  ScratchFolder const scratch("maps_that_fit");
  for (auto const& entry : std::filesystem::directory_iterator(maps_folder()))
    std::filesystem::create_symlink(entry.path(), scratch.path() / entry.path().filename());
  std::ofstream(scratch.path() / "own.toml")
      << "base = \"llama\"\nmatch = { args = \"num_layers == 6\" }\n";
  expect_refused(
      ErrorKind::usage, "the checkpoint's args fit several families: llama.toml, own.toml",
      [&] { MapLibrary({scratch.path()}).choose("auto", {}, sample_model("llama").args, true); });
  expect_refused(
      ErrorKind::usage,
      "it has names for models of type llama, mistral, and the model's family is qwen3",
      [] { check_names_of("[model] map", map_file("torchtitan_llama"), map_file("qwen3")); });

  auto const target_map = [](char const* map, MeshSizes const& mesh, char const* family) {
    PlanRequest request = request_for(FormatId::dcp, mesh);
    request.options.dcp.map = map;
    return std::pair(made_huggingface(sample_model(family)), request);
  };
  auto const expect = [](std::pair<MadeCheckpoint, PlanRequest> const& job, char const* words) {
    expect_refused(job.first, job.second, ErrorKind::usage, words);
  };
  expect(target_map("torchtitan_llama", {.tp = 2}, "llama"),
         "[target] layout.tp = 2: the names of torchtitan_llama are the same for every layout");
  expect(target_map("mlite_qwen3_moe", {.pp = 3, .vpp = 2}, "qwen3_moe"),
         "[target] layout.vpp = 2: Megatron Lite has one model chunk for each pipeline stage");
  expect(target_map("qwen3", {}, "llama"),
         "it describes another family than the source, whose map is llama.toml");
}

TEST(SourceRefuses, AFamilyThatMakesNoConfig) {
  SourceModel read;
  read.names.maps.family = map_file("smollm3");
  expect_refused(ErrorKind::usage,
                 "smollm3.toml cannot make a config.json from a checkpoint's args",
                 [&] { make_config({}, {}, read); });
}

TEST(SourceRefuses, ATrainerThatHasNoNameForAPartOfATower) {
  MapChoice maps{
      parse_map_file("let = { L = 1, M = 0 }\naxes = { hidden = 4, layer = 1 }\ntensors = { '' "
                     "= ['norm: hidden'] }\n[stored]\n'final.weight' = 'norm: hidden'\n",
                     "core.toml"),
      parse_map_file(
          "keep = ['vision.*']\nlet = { L = 1, M = 0, tower = 0 }\naxes = { hidden = 4, "
          "layer = 1 }\n[kept.own]\n'audio.*' = 'sound.*'\n[stored]\n'vision.norm.weight' = "
          "{ is = 'norm: hidden', when = 'tower' }\n",
          "family.toml")};
  TowerEntries const entries(maps, Json::object());
  ASSERT_FALSE(entries.empty());
  MapFile core = maps.core;
  expect_refused(ErrorKind::usage, "[kept.own] has no name for 'vision.norm.weight'",
                 [&] { entries.add(core, *maps.family, &maps.family->kept.front()); });
}

// --- sizes and state --------------------------------------------------------------------------

TEST(SourceRefuses, AVocabularyOfMoreRowsThanTheEmbeddingHas) {
  MapFile const family = map_file("llama");
  SourceModel read;
  read.model = std::make_unique<Model>(family, map_file("mcore"),
                                       ModelFacts{sample_model("llama").config, "config.json", 0});
  read.facts.traits.padded_vocab = 48;
  for (auto const& [stated, kind] :
       {std::pair(0, ErrorKind::source), std::pair(50, ErrorKind::usage)}) {
    PlanRequest request;
    request.read.true_vocab_size = stated;
    expect_refused(kind, "the embedding has 48 rows over all ranks, the vocabulary is 50",
                   [&] { check_vocab({}, request, read); });
  }
}

TEST(SourceRefuses, OneMomentWithoutTheOtherAndStateOfNoParameter) {
  std::vector<PlainTensor> const tensors{{"w", {4}}};
  SourceModel read;
  read.model = std::make_unique<Model>(tensors, "test");
  read.facts.view.states = {"exp_avg", "exp_avg_sq"};
  read.model->add_slots(read.facts.view.states);
  Lines warnings;
  auto const expect = [&](std::string_view words) {
    expect_refused(ErrorKind::source, words, [&] { check_moments({}, read, warnings); });
  };
  TensorId const first = read.model->in_slot(*read.model->find_tensor("w"), SlotId(1));
  read.model->set_exists(first, true);
  expect("'w' has exp_avg and lacks exp_avg_sq, which Adam keeps together");
  read.model->set_exists(first, false);
  expect("lists optimizer state (exp_avg, exp_avg_sq) and holds none of any parameter");
}

TEST(SourceRefuses, StateWithoutTheSettingsOfAnOptimizer) {
  std::vector<MadeTensor> tensors = changed(llama_folder(), [](MadeTensor&) {});
  for (std::size_t t = 0, weights = tensors.size(); t < weights; ++t)
    for (char const* slot : {"exp_avg", "exp_avg_sq"}) {
      MadeTensor const weight = tensors[t];
      tensors.push_back(
          {fmt::format("optimizer.state.{}.{}", weight.name, slot), weight.shape, DType::f32});
    }
  PlanRequest request = request_for(FormatId::torch_dist);
  request.read.map = "llama";
  expect_refused(made_of(FormatId::dcp, tensors, sample_model("llama").config), request,
                 ErrorKind::source, "holds optimizer state and no settings of an optimizer");
}

TEST(SourceRefuses, AWeightThatIsNoRoundedMaster) {
  MadeCheckpoint made = made_torch_dist(sample_model("llama"), true);
  std::vector<MadeTensor> tensors = changed(made, [](MadeTensor& one) {
    if (one.name == "decoder.final_layernorm.weight") one.dtype = DType::f64;
  });
  for (std::size_t t = 0, weights = tensors.size(); t < weights; ++t)
    for (char const* state : {"param", "exp_avg", "exp_avg_sq"}) {
      MadeTensor const weight = tensors[t];
      tensors.push_back(
          {fmt::format("optimizer.state.{}.{}", state, weight.name), weight.shape, DType::f32});
    }
  MadeCheckpoint source(FormatId::torch_dist);
  source.add_file(tensors);
  source.value.run.args = made.value.run.args;
  source.value.run.iteration = source.value.run.stated_iteration = 7;
  expect_refused(source, request_for(FormatId::fsdp_dtensor), ErrorKind::source,
                 "'final_norm' is F64, and cannot be compared with its master weight");
}

TEST(SourceRefuses, FlatStateThatItsArgsDoNotDescribe) {
  MapFile const core = map_file("mcore");
  auto const expect = [&](Json args, std::vector<FlatBuffer> buffers, std::vector<StateList> lists,
                          std::string_view words) {
    SourceModel read;
    read.names.maps.core = core;
    read.facts.args = std::move(args);
    read.model = std::make_unique<Model>(core, core, ModelFacts{read.facts.args, "args", 0});
    read.model->add_slots(Lines{"exp_avg", "exp_avg_sq"});
    read.facts.traits.spec = "te";
    read.facts.traits.mtp_block = "mtp_model_layer";
    read.facts.traits.padded_vocab = 64;
    read.stored.catalog.tensors.resize(read.model->tensors().size());
    read.facts.view.states = {"exp_avg", "exp_avg_sq"};
    read.facts.view.buffers = std::move(buffers);
    read.facts.view.lists = std::move(lists);
    Checkpoint source;
    source.storage = Storage::chunks;
    source.place = "/ckpt";
    expect_refused(ErrorKind::source, words, [&] { add_flat_states(source, {}, read); });
  };
  Json const args = made_torch_dist(sample_model("llama"), true).value.run.args;
  FlatBuffer buffer;
  buffer.weights = "bfloat16";
  buffer.buckets = {{0, 1}};
  StateList third;
  third.chain = 2;
  expect(args, {}, {third}, "optimizers or more, of several kinds such as Muon and Adam");
  FlatBuffer other = buffer;
  other.group = 7;
  expect(args, {other}, {}, "optimizer 0 has state of a group 7, and the layout of args");
  Json sharded = args;
  expect(sharded.set("gtp_weight_remat_size", std::int64_t{2}), {buffer}, {},
         "weights are sharded along one more axis (GTP)");
}

}  // namespace
}  // namespace reshard::test
