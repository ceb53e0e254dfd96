#include "core/base/file.hpp"
#include "core/base/member_file.hpp"
#include "core/formats/huggingface/shards.hpp"
#include "stages/plan/target/target_side.hpp"

namespace reshard {

void add_sidecars(JobPlan& job, HuggingFaceTarget const& target) {
  if (!target.reference) {
    if (!target.config_text.empty())
      job.texts.push_back({std::string(huggingface::config_name), target.config_text, false, {}});
    return;
  }
  if (!target.reference->config.is_null())
    job.texts.push_back(
        {std::string(huggingface::config_name), target.reference->config_text, false, {}});
  job.reference = target.reference;
}

void add_carried(JobPlan& job, std::optional<huggingface::Folder> const& files) {
  if (!files || files->config.is_null()) return;
  std::filesystem::path const folder = huggingface::carried_name;
  job.texts.push_back({folder / huggingface::config_name, files->config_text, false, {}});
  if (!files->weight_map.empty()) {
    auto const index = readable_member(files->path, huggingface::index_name);
    job.texts.push_back({folder / huggingface::index_name, {}, false, [index] {
                           return read_text_file(index, huggingface::largest_index_bytes);
                         }});
  }
  job.reference = files;
  job.reference_to = folder;
}

void place_in_shards(JobPlan& job, std::span<TensorSpec const> specs, std::uint64_t shard_bytes,
                     HuggingFaceTarget const& target,
                     std::function<std::vector<Piece>(std::size_t)> const& pieces,
                     std::vector<bool> const& copies) {
  std::span<std::pair<std::string, std::string> const> reference_map;
  if (target.reference) reference_map = target.reference->weight_map;
  auto const shards = huggingface::plan_shards(specs, shard_bytes, reference_map);
  job.target.tensors.resize(job.model->tensors().size());
  for (std::uint32_t f = 0; f < shards.size(); ++f) {
    job.files.push_back(
        {shards[f].name, shards[f].plan.size_bytes, nullptr, shards[f].plan.header, nullptr});
    job.target.files.push_back(shards[f].name);
    for (std::size_t i = 0; i < shards[f].tensors.size(); ++i) {
      std::size_t const t = shards[f].tensors[i];
      job.target.add({f, shards[f].plan.offset_bytes[i], specs[t].dtype, specs[t].name}, pieces(t),
                     !copies.empty() && copies[t]);
    }
  }
  add_sidecars(job, target);
  if (huggingface::needs_index(shards))
    job.texts.push_back(
        {std::string(huggingface::index_name),
         huggingface::index_json(shards, specs,
                                 target.reference ? target.reference->index_metadata : Json()),
         true,
         {}});
}

void plan_huggingface_target(JobPlan& job, TargetParts const& parts,
                             HuggingFaceTarget const& target) {
  std::vector<StoredName> const names = parts.side->names(nullptr);
  std::vector<TensorSpec> specs;
  std::vector<bool> copies;
  for (StoredName const& name : names) {
    specs.push_back(
        {name.name, stored_dtype(parts, name), parts.side->layout(name.entry, {}).file_shape});
    copies.push_back(name.copy);
  }
  auto const pieces = [&](std::size_t t) { return parts.side->pieces(names[t], {}); };
  place_in_shards(job, specs, parts.request->shard_bytes, target, pieces, copies);
}

}  // namespace reshard
