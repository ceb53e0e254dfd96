#include <algorithm>
#include <unordered_map>

#include "core/containers/torch/torch_frame.hpp"
#include "core/formats/megatron/args.hpp"
#include "core/formats/megatron/directory.hpp"
#include "core/formats/megatron/mesh.hpp"
#include "core/formats/megatron/named_target.hpp"
#include "core/formats/megatron/source.hpp"
#include "core/formats/target_parts.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Where the bytes of a tensor entry of a shard come from: a stored name of the model, or opaque
/// state.
struct EntryOrigin {
  StoredName const* name = nullptr;
  ExtraStates::Placed extra;
};

class MegatronPlanner {
 public:
  MegatronPlanner(TargetDraft& job, TargetParts const& parts, MegatronTarget const& target)
      : job_(job), parts_(parts), target_(target) {
    sizes_ = megatron::shard_sizes(parts.request->mesh);
    if (target.record == nullptr) return;
    pickle::Document const& document = target.record->document();
    content_.source = &document;
    check_carried(*target.record, megatron::find_args(document), "args");
    content_.carried = megatron::carried_values(document);
    for (megatron::Carried const& carried : content_.carried)
      check_carried(*target.record, carried.node, carried.key);
    content_.iteration = target.record->iteration;
  }

  std::vector<OpaqueCopy> run() {
    Json const experts = parts_.model->value("expert");
    experts_ = experts.integer() != nullptr ? *experts.integer() : 0;
    set_args();
    for (PipelineChunk const& chunk : target_.chunks) names_.push_back(parts_.side->names(&chunk));
    folder_ = run_folder(target_.record);
    for (megatron::ShardPlace const& place : megatron::target_places(sizes_)) add_shard(place);
    job_.texts.push_back(
        {std::string(megatron::tracker_name), run_tracker(target_.record), true, {}});
    return std::move(opaque_);
  }

 private:
  void set_args() {
    megatron::TargetArgs stated{sizes_, parts_.request->pipeline,
                                parts_.side->padded_size("vocab")};
    content_.args = target_.args;
    auto const sizes = megatron::target_args(stated, target_.source_args);
    content_.args.insert(content_.args.end(), sizes.begin(), sizes.end());
  }

  void add_shard(megatron::ShardPlace const& shard_place) {
    MeshPlace const at = megatron::place_of(parts_.request->mesh, shard_place);
    std::vector<std::vector<EntryOrigin>> origins;
    content_.chunks.clear();
    for (PipelineChunk const& chunk : target_.chunks) {
      if (chunk.rank != shard_place.pp) continue;
      auto const number = static_cast<std::size_t>(&chunk - target_.chunks.data());
      origins.emplace_back();
      content_.chunks.push_back(chunk_entries({at, &chunk}, names_[number], origins.back()));
    }
    megatron::ShardDocument shard = megatron::build_shard(content_);
    TorchFilePlan plan = plan_torch_file(shard.document, megatron::model_archive_name);
    auto const file = static_cast<std::uint32_t>(job_.files.size());
    fs::path const path = folder_ /
                          megatron::format_shard_name(shard_place, sizes_, parts_.request->style) /
                          megatron::model_file_name;
    job_.target.files.push_back(path.string());
    for (std::size_t i = 0; i < shard.tensors.size(); ++i) {
      auto const& entry = shard.tensors[i];
      add_tensor(file, plan.storages[i], origins[entry.chunk][entry.entry],
                 content_.chunks[entry.chunk][entry.entry], {at, nullptr});
    }
    std::uint64_t const size = plan.size_bytes;
    job_.files.push_back({path, size, megatron::shard_coordinates(shard_place),
                          std::make_shared<TorchFrame const>(std::move(plan))});
  }

  std::vector<megatron::ChunkEntry> chunk_entries(SidePlace const& place,
                                                  std::vector<StoredName> const& names,
                                                  std::vector<EntryOrigin>& origins) {
    std::vector<megatron::ChunkEntry> entries;
    for (StoredName const& name : names) {
      megatron::ChunkEntry entry;
      entry.name = name.name;
      entry.dtype = stored_dtype(parts_, name);
      entry.shape = parts_.side->layout(name.entry, place).file_shape;
      entries.push_back(std::move(entry));
      origins.push_back({&name, {}});
    }
    for (ExtraStates::Placed& extra :
         target_.extras->place(*place.chunk, experts_at(place), names)) {
      entries.push_back(extra.entry);
      origins.push_back({nullptr, std::move(extra)});
    }
    return entries;
  }

  ExtraStates::HeldExperts experts_at(SidePlace const& place) const {
    std::optional<Run> const held = parts_.side->held("expert", place);
    if (!held || held->end == held->begin) return {};
    return {*held, experts_ / (held->end - held->begin)};
  }

  void add_tensor(std::uint32_t file, ZipRecord const& record, EntryOrigin const& origin,
                  megatron::ChunkEntry const& entry, SidePlace const& place) {
    if (origin.name == nullptr) {
      if (origin.extra.opaque)
        opaque_.push_back({origin.extra.source_file, file, origin.extra.source_offset_bytes,
                           record.payload_offset_bytes, record.size_bytes});
      return;
    }
    job_.target.add({file, record.payload_offset_bytes, entry.dtype, entry.name},
                    parts_.side->pieces(*origin.name, place), origin.name->copy);
  }

  TargetDraft& job_;
  TargetParts const& parts_;
  MegatronTarget const& target_;
  megatron::MeshSizes sizes_;
  Index experts_ = 0;
  megatron::ShardContent content_;
  std::vector<std::vector<StoredName>> names_;
  fs::path folder_;
  std::vector<OpaqueCopy> opaque_;
};

}  // namespace

std::vector<OpaqueCopy> plan_megatron_target(TargetDraft& job, TargetParts const& parts,
                                             MegatronTarget const& target) {
  return MegatronPlanner(job, parts, target).run();
}

}  // namespace reshard

namespace reshard::megatron {

TargetTraits MegatronFormat::target() const {
  return {.names = NameOwner::megatron, .storage = Storage::shares};
}

void MegatronFormat::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  MegatronNames const names(job);
  TargetRequest const& request = names.request;
  names.warn_of_unknown_padding(draft.warnings);
  Side const side(job.model, job.read.maps.core, names.side_options(true));
  draft.target_adds = side.adds();
  ExtraStates extras(request.spec, request.form, request.foreign_classes);
  Index const experts = job.count("expert");
  if (job.source.storage == Storage::shares) {
    extras.take(job.source, job.read.chunks, experts);
    extras.use_source_keys(request.spec == job.read.traits.spec &&
                           (experts == 0 || request.form == job.read.traits.form));
  } else if (job.source.storage == Storage::chunks && job.read.is_megatron()) {
    extras.take_objects(job.source);
  }
  draft.stated = {names.all_args(side), names.side_options(true)};
  draft.file_mesh = shard_mesh(sizes_of(request.mesh));
  draft.layout = layout_text(sizes_of(request.mesh));
  MegatronTarget const target{pipeline_chunks(request.pipeline), job.record, job.read.args,
                              names.args(), &extras};
  draft.opaque = plan_megatron_target(draft, {&job.model, &side, job.dtypes, &request}, target);
}

/// Names of whole tensors have no place in rank files: the plan has refused this.
void MegatronFormat::lay_out_named(NamedTarget const& /*job*/, TargetDraft& /*draft*/) const {
  fail(ErrorKind::internal, "a Megatron target cannot keep names");
}

}  // namespace reshard::megatron
