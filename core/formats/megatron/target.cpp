#include <algorithm>
#include <unordered_map>

#include "core/base/counted.hpp"
#include "core/base/text.hpp"
#include "core/containers/torch/torch_frame.hpp"
#include "core/formats/megatron/args.hpp"
#include "core/formats/megatron/directory.hpp"
#include "core/formats/megatron/mesh.hpp"
#include "core/formats/megatron/named_target.hpp"
#include "core/formats/megatron/rank_state.hpp"
#include "core/formats/megatron/source.hpp"
#include "core/formats/megatron/state_target.hpp"
#include "core/formats/megatron/traits.hpp"
#include "core/formats/target_parts.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view distributed_archive_name = "distrib_optim";

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
    content_.args.insert(content_.args.end(), target_.last_args.begin(), target_.last_args.end());
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
    std::vector<megatron::StateTensor> states;
    if (target_.state != nullptr) target_.state->add_to_shard(shard.document, shard_place, states);
    TorchFilePlan plan =
        plan_torch_file(shard.document, megatron::model_archive_name, job_.data_layout);
    auto const file = static_cast<std::uint32_t>(job_.files.size());
    for (std::size_t i = 0; i < shard.tensors.size(); ++i) {
      auto const& entry = shard.tensors[i];
      add_tensor(file, plan.storages[i], origins[entry.chunk][entry.entry],
                 content_.chunks[entry.chunk][entry.entry], {at, nullptr});
    }
    add_file(shard_place, megatron::model_file_name, std::move(plan), shard.tensors.size(),
             std::move(states));
    if (target_.distributed) add_distributed_file(shard_place);
  }

  void add_distributed_file(megatron::ShardPlace const& shard_place) {
    auto file = target_.state->distributed_file(shard_place);
    if (!file) return;
    TorchFilePlan plan =
        plan_torch_file(file->document, distributed_archive_name, job_.data_layout);
    add_file(shard_place, megatron::distributed_file_name, std::move(plan), 0,
             std::move(file->tensors));
  }

  /// A file whose storages from `first` on are `states`.
  void add_file(megatron::ShardPlace const& shard_place, std::string_view name, TorchFilePlan plan,
                std::size_t first, std::vector<megatron::StateTensor> states) {
    auto const file = static_cast<std::uint32_t>(job_.files.size());
    fs::path const path =
        folder_ / megatron::format_shard_name(shard_place, sizes_, parts_.request->style) / name;
    job_.target.files.push_back(path.string());
    std::vector<std::string> payloads(plan.storages.size());
    for (std::size_t i = 0; i < states.size(); ++i) {
      megatron::StateTensor& state = states[i];
      for (megatron::StateTensor::Part& part : state.parts)
        job_.target.add(
            {file, plan.storages[first + i].payload_offset_bytes, state.dtype, state.name},
            std::move(part.pieces), part.copy);
      payloads[first + i] = std::move(state.payload);
    }
    std::uint64_t const size = plan.size_bytes;
    job_.files.push_back({path, size, megatron::shard_coordinates(shard_place),
                          frames_.shared(std::move(plan), std::move(payloads))});
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
    // Checkpoints of adapters have no states of modules.
    if (!parts_.model->adapter_ranks().empty()) return entries;
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
                    parts_.side->interned_pieces(*origin.name, place), origin.name->copy);
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
  TorchFrames frames_;
};

}  // namespace

std::vector<OpaqueCopy> plan_megatron_target(TargetDraft& job, TargetParts const& parts,
                                             MegatronTarget const& target) {
  return MegatronPlanner(job, parts, target).run();
}

}  // namespace reshard

namespace reshard::megatron {

namespace {

/// The optimizer state of a target, and what its args say of it.
class StatePlan {
 public:
  /// Nothing for a job without optimizer state.
  static std::optional<StatePlan> of(MappedTarget const& job, MegatronNames const& names,
                                     Side const& side) {
    if (job.model.slots().size() == 1 || job.record == nullptr) return std::nullopt;
    return StatePlan(job, names, side);
  }

  StateModel model(TargetParts const& parts, std::vector<PipelineChunk> const& chunks) const {
    return {parts, map_, chunks, all_args_, settings_, distributed_};
  }
  bool distributed() const { return distributed_; }
  MegatronNames::Args const& args() const { return args_; }

  std::string bucket_warning() const {
    Json const overlap = fact(all_args_, "overlap_grad_reduce");
    bool const overlaps = overlap.boolean() != nullptr && *overlap.boolean();
    Json const size = fact(all_args_, "ddp_bucket_size");
    std::string const flags =
        !overlaps ? "without --overlap-grad-reduce"
        : size.integer() == nullptr
            ? fmt::format(
                  "with --overlap-grad-reduce, without --ddp-bucket-size and with a "
                  "data-parallel size of {}",
                  fact(all_args_, "data_parallel_size").dump())
            : fmt::format("with --overlap-grad-reduce --ddp-bucket-size {}", *size.integer());
    return fmt::format(
        "distrib_optim.pt: places in it depend on the gradient buckets of the run ({}): start "
        "training {}, or choose target.format = \"torch_dist\", which does not depend on them",
        flat_rule_text(all_args_), flags);
  }

 private:
  StatePlan(MappedTarget const& job, MegatronNames const& names, Side const& side)
      : map_(job.read.maps.core), all_args_(names.all_args(side)) {
    OptimizerRequest const& asked = names.request.optimizer;
    auto const& slots = job.model.slots();
    distributed_ = asked.files == OptimizerFiles::automatic
                       ? std::ranges::find(slots, "param") != slots.end()
                       : asked.files == OptimizerFiles::distributed;
    std::optional<TensorId> const bias = job.model.find_tensor("experts.down_bias");
    bool const apart = job.count("expert") > 0 && names.request.mesh.size("ep") > 1;
    settings_ = optimizer_settings(job.source, *job.record, apart, bias && job.model.exists(*bias));
    set_args(job, asked);
  }

  void set_args(MappedTarget const& job, OptimizerRequest const& asked) {
    set("use_distributed_optimizer", distributed_);
    if (!fact(all_args_, "no_save_optim").is_null()) set("no_save_optim", Json());
    if (!distributed_) return;
    if (asked.overlap_grad_reduce) set("overlap_grad_reduce", *asked.overlap_grad_reduce);
    if (asked.bucket_elements > 0) set("ddp_bucket_size", asked.bucket_elements);
    // Sizes of the default bucket follow from it; without a word it stays as it was.
    Json const before = fact(job.read.args, "data_parallel_size");
    if (asked.data_parallel > 0)
      set("data_parallel_size", asked.data_parallel);
    else if (before.integer() != nullptr)
      all_args_.set("data_parallel_size", before);
  }

  void set(char const* key, Json const& value) {
    args_.emplace_back(key, value);
    all_args_.set(key, value);
  }

  MapFile const& map_;
  Json all_args_;
  MegatronNames::Args args_;
  OptimizerSettings settings_;
  bool distributed_ = false;
};

}  // namespace

TargetTraits MegatronFormat::target() const {
  return {.names = NameOwner::megatron, .storage = Storage::shares, .rank_states = true};
}

void MegatronFormat::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  MegatronNames const names(job);
  TargetRequest const& request = names.request;
  names.warn_of_unknown_padding(draft.warnings);
  Side const side(job.model, job.read.maps.core, names.side_options(true));
  draft.target_adds = side.adds();
  ExtraStates extras(request.spec, request.form, request.foreign_classes);
  Index const experts = job.count("expert");
  if (names.renumbers()) {  // states of modules have the numbers of other layers
    if (has_module_states(job.source)) draft.warnings.push_back(renumbered_states_warning);
  } else if (job.source.storage == Storage::shares) {
    extras.set_names(job.read.traits.names, job.read.target_trainer);
    extras.take(job.source, job.read.chunks, experts);
    extras.use_source_keys(same_names(job.read.traits.names, job.read.target_trainer) &&
                           request.spec == job.read.traits.spec &&
                           (experts == 0 || request.form == job.read.traits.form));
  } else if (job.source.storage == Storage::chunks && job.read.is_megatron()) {
    extras.set_names(job.read.traits.names, job.read.target_trainer);
    extras.take_objects(job.source);
  } else {
    extras.set_names({}, job.read.target_trainer);
  }
  draft.stated = {names.stated_args(side), names.side_options(true)};
  draft.file_mesh = shard_mesh(sizes_of(request.mesh));
  draft.layout = layout_text(sizes_of(request.mesh));
  MegatronTarget target;
  target.chunks = pipeline_chunks(request.pipeline);
  target.record = job.record;
  target.source_args = names.args_before();
  target.args = names.args();
  target.extras = &extras;
  TargetParts const parts{&job.model, &side, job.dtypes, &request};
  std::optional<StatePlan> const plan = StatePlan::of(job, names, side);
  std::optional<StateTarget> state;
  if (plan) {
    state.emplace(plan->model(parts, target.chunks));
    target.state = &*state;
    target.distributed = plan->distributed();
    target.last_args = plan->args();
  }
  draft.opaque = plan_megatron_target(draft, parts, target);
  if (state && !state->frozen().empty())
    draft.warnings.push_back(fmt::format(
        "{} {} no optimizer state, and the optimizer of the target treats {} as frozen ({})",
        counted(state->frozen().size(), "parameter"),
        agreeing(state->frozen().size(), "has", "have"),
        agreeing(state->frozen().size(), "it", "them"),
        listed(std::vector<std::string>(state->frozen().begin(), state->frozen().end()), 6)));
  if (state && state->depends_on_buckets()) draft.warnings.push_back(plan->bucket_warning());
}

/// Names of whole tensors have no place in rank files: the plan has refused this.
void MegatronFormat::lay_out_named(NamedTarget const& /*job*/, TargetDraft& /*draft*/) const {
  fail(ErrorKind::internal, "a Megatron target cannot keep names");
}

}  // namespace reshard::megatron
