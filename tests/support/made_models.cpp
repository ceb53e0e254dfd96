#include "tests/support/made_models.hpp"

#include "core/formats/megatron/headers/shard_name.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/mapping/sides/side.hpp"

namespace reshard::test {
namespace {

/// Both maps and the model that they describe.
struct Described {
  explicit Described(SampleModel const& sample)
      : family(map_file(sample.family)),
        core(map_file("mcore")),
        model(family, core, {sample.config, "config.json", 0}) {
    Side const side(model, family, {});
    apply_family(model, side);
    for (TensorId const tensor : side.optional_tensors())
      model.set_exists(tensor, false);  // numbers of quantisers, which a plain model lacks
  }
  MapFile family, core;
  Model model;
};

SideOptions core_options(MeshSizes const& sizes, std::string const& form) {
  SideOptions options;
  options.mesh = sizes;
  options.options = {{"form", form}, {"spec", "te"}, {"mtp_block", "mtp_model_layer"}};
  return options;
}

Json args_for(SampleModel const& sample, MeshSizes const& mesh) {
  Json args = sample.args;
  args.set("tensor_model_parallel_size", mesh.tp)
      .set("pipeline_model_parallel_size", mesh.pp)
      .set("expert_model_parallel_size", mesh.ep)
      .set("expert_tensor_parallel_size", mesh.etp)
      .set("transformer_impl", "transformer_engine");
  return args;
}

PipelineSpec pipeline_of(SampleMesh const& at, int layers) {
  PipelineSpec spec;
  spec.ranks = at.mesh.pp;
  spec.chunks_per_rank = at.mesh.vpp;
  spec.first_stage_layers = at.first_stage_layers;
  spec.last_stage_layers = at.last_stage_layers;
  spec.decoder_layers = layers;
  return spec;
}

}  // namespace

SampleModel sample_model(std::string const& family) {
  for (SampleModel const& sample : sample_models())
    if (sample.family == family) return sample;
  fail(ErrorKind::internal, "there is no sample of {}", family);
}

MadeCheckpoint made_huggingface(SampleModel const& sample) {
  Described const described(sample);
  Side const side(described.model, described.family, {});
  std::vector<MadeTensor> tensors;
  for (StoredName const& name : side.names(nullptr))
    if (!name.copy) tensors.push_back({name.name, side.shape(name)});
  MadeCheckpoint made(FormatId::huggingface);
  made.add_file(tensors);
  made.value.model.config = sample.config;
  huggingface::Folder& beside = made.value.model.beside.emplace();
  beside.path = made.value.folder;
  beside.config = sample.config;
  beside.config_text = sample.config.dump(2) + "\n";
  return made;
}

MadeCheckpoint made_fp8(SampleModel sample, std::string const& unscaled,
                        std::string const& lacking) {
  sample.config.set(
      "quantization_config",
      Json().set("quant_method", "fp8").set("weight_block_size", Json::array().push(16).push(16)));
  MadeCheckpoint const plain = made_huggingface(sample);
  std::vector<MadeTensor> tensors;
  for (StoredTensor const& tensor : plain.value.stored.tensors) {
    bool const codes = tensor.name.ends_with("proj.weight");
    if (tensor.name != lacking)
      tensors.push_back({tensor.name, tensor.shape, codes ? DType::f8_e4m3 : tensor.dtype});
    if (!codes || tensor.name == unscaled) continue;
    tensors.push_back({tensor.name + "_scale_inv",
                       {(tensor.shape[0] + 15) / 16, (tensor.shape[1] + 15) / 16},
                       DType::f32});
  }
  MadeCheckpoint made(FormatId::huggingface);
  made.add_file(tensors);
  made.value.model.config = plain.value.model.config;
  made.value.model.beside = plain.value.model.beside;
  return made;
}

MadeCheckpoint made_megatron(SampleModel const& sample, SampleMesh const& at) {
  Described const described(sample);
  SideOptions options = core_options(at.mesh, "grouped");
  options.local = true;
  Side const side(described.model, described.core, std::move(options));
  auto const layers = static_cast<int>(*described.model.value("L").integer());
  auto const chunks = pipeline_chunks(pipeline_of(at, layers));
  MadeCheckpoint made(FormatId::megatron);
  megatron::MeshSizes const sizes = megatron::sizes_of(at.mesh);
  made.value.shares.mesh = at.mesh;
  made.value.shares.file_mesh = megatron::shard_mesh(sizes);
  made.value.shares.layout = megatron::layout_text(sizes);
  made.value.run.args = args_for(sample, at.mesh);
  made.value.run.iteration = made.value.run.stated_iteration = 7;
  for (megatron::ShardPlace const& place : megatron::shard_places(sizes)) {
    if (sizes.vpp != 1) fail(ErrorKind::internal, "shares of several chunks are not made here");
    PipelineChunk const& chunk = chunks[static_cast<std::size_t>(place.pp)];
    SidePlace const at_rank{megatron::place_of(made.value.shares.mesh, place), &chunk};
    std::vector<MadeTensor> tensors;
    for (StoredName const& name : side.names(&chunk))
      tensors.push_back({name.name, side.layout(name.entry, at_rank).file_shape});
    SharePlace share;
    share.at = at_rank.at;
    share.file_at = megatron::shard_coordinates(place);
    share.chunk = static_cast<std::size_t>(place.pp);
    share.label = megatron::format_shard_name(place, sizes, megatron::NameStyle::megatron);
    made.add_share(share, tensors);
  }
  return made;
}

MadeCheckpoint made_torch_dist(SampleModel const& sample, bool stacked) {
  Described const described(sample);
  SideOptions options = core_options({}, "dist");
  options.in_front = true;
  options.options["stacked"] = Json(stacked ? 1 : 0);
  options.options["halves"] = Json(0);
  options.options["parts"] = Json(1);
  Side const side(described.model, described.core, std::move(options));
  std::vector<MadeTensor> tensors;
  for (StoredName const& name : side.names(nullptr))
    tensors.push_back({name.name, side.shape(name)});
  MadeCheckpoint made(FormatId::torch_dist);
  made.add_file(tensors);
  made.value.run.args = args_for(sample, {});
  made.value.run.iteration = made.value.run.stated_iteration = 7;
  return made;
}

}  // namespace reshard::test
