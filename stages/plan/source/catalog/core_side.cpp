#include "stages/plan/source/catalog/core_side.hpp"

#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/mcore/traits.hpp"

namespace reshard {
namespace {

/// The tensor parallelism of the save: rows of some adapters and of quantisers lie by it. That of
/// experts is the model's where it is not stated.
Mesh saved_mesh(Json const& args) {
  Json const tp = fact(args, "tensor_model_parallel_size");
  Json const etp = fact(args, "expert_tensor_parallel_size");
  std::map<std::string, int, std::less<>> sizes;
  for (auto const& [axis, said] :
       {std::pair("tp", &tp), std::pair("etp", etp.integer() != nullptr ? &etp : &tp)})
    if (said->integer() != nullptr) sizes[axis] = narrow<int>(*said->integer());
  return megatron::mesh_of(sizes);
}

SideOptions chunk_options(SourceModel const& read) {
  NameTraits const& traits = read.facts.traits;
  SideOptions options;
  options.in_front = true;
  options.options = {{"form", traits.form}, {"spec", traits.spec}, {"mtp_block", traits.mtp_block}};
  options.options["paired"] = Json(traits.paired ? 1 : 0);
  options.options["numbered_biases"] =
      Json(fact(read.facts.args, "expert_model_parallel_size") == Json(1) ? 1 : 0);
  options.options["stacked"] = Json(traits.stacked ? 1 : 0);
  options.options["halves"] = Json(traits.halves ? 1 : 0);
  options.options["parts"] = Json(traits.parts ? 1 : 0);
  options.options["vis_stacked"] = Json(traits.names.tower_stacked ? 1 : 0);
  if (!read.names.adapter.empty() || !read.model->schemes().empty())
    options.mesh = saved_mesh(read.facts.args);
  return options;
}

SideOptions share_options(Checkpoint const& source, NameTraits const& traits) {
  SideOptions options;
  options.local = true;
  options.mesh = source.shares.mesh;
  options.options = {{"form", traits.form},
                     {"spec", traits.spec},
                     {"mtp_block", traits.mtp_block},
                     {"paired", traits.paired ? 1 : 0}};
  return options;
}

}  // namespace

SideOptions core_side_options(Checkpoint const& source, SourceModel const& read) {
  NameTraits const& traits = read.facts.traits;
  SideOptions options =
      source.storage == Storage::shares ? share_options(source, traits) : chunk_options(read);
  megatron::add_names(options, traits.names);
  options.adapter = read.names.adapter;
  options.adapters_apart = read.names.adapters_apart;
  if (traits.padded_vocab > 0) options.padded_sizes["vocab"] = traits.padded_vocab;
  options.place = source.folder.string() + ", ";
  return options;
}

}  // namespace reshard
