#include "core/formats/huggingface/shards.hpp"
#include "stages/plan/target_side.hpp"

namespace reshard {
namespace {

void add_sidecars(JobPlan& job, HuggingFaceTarget const& target) {
  if (!target.reference) {
    job.texts.push_back({std::string(huggingface::config_name), target.config_text, false});
    return;
  }
  if (!target.reference->config.is_null()) job.texts.push_back({std::string(huggingface::config_name), target.reference->config_text, false});
  job.reference = target.reference;
}

}  // namespace

void plan_huggingface_target(JobPlan& job, TargetParts const& parts, HuggingFaceTarget const& target) {
  std::vector<StoredName> const names = parts.side->names(nullptr);
  std::vector<TensorSpec> specs;
  for (StoredName const& name : names) specs.push_back({name.name, stored_dtype(parts, name), parts.side->layout(name.entry, {}).file_shape});
  std::span<std::pair<std::string, std::string> const> reference_map;
  if (target.reference) reference_map = target.reference->weight_map;
  auto const shards = huggingface::plan_shards(specs, parts.request->shard_bytes, reference_map);
  job.target.tensors.resize(parts.model->tensors().size());
  for (std::uint32_t f = 0; f < shards.size(); ++f) {
    job.files.push_back({shards[f].name, shards[f].plan.size_bytes, nullptr, shards[f].plan.header});
    job.target.files.push_back(shards[f].name);
    for (std::size_t i = 0; i < shards[f].tensors.size(); ++i) {
      std::size_t const t = shards[f].tensors[i];
      job.target.add({f, shards[f].plan.offset_bytes[i], specs[t].dtype, specs[t].name}, parts.side->pieces(names[t], {}), names[t].copy);
    }
  }
  add_sidecars(job, target);
  if (huggingface::needs_index(shards))
    job.texts.push_back({std::string(huggingface::index_name),
                         huggingface::index_json(shards, specs, target.reference ? target.reference->index_metadata : Json()), true});
}

}  // namespace reshard
