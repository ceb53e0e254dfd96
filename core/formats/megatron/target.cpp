#include <algorithm>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/mcore/traits.hpp"
#include "core/formats/megatron/named_target.hpp"
#include "core/formats/megatron/source.hpp"
#include "core/formats/megatron/state/rank_state.hpp"
#include "core/formats/megatron/state/state_target.hpp"
#include "core/formats/targets/target_parts.hpp"

namespace reshard::megatron {

namespace {

/// The optimizer state of a target, and its args.
class StatePlan {
 public:
  /// nullopt for a job without optimizer state.
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
      : map_(job.read.names.maps.core), all_args_(names.all_args(side)) {
    TargetOptions const& asked = job.request.options.megatron;
    auto const& slots = job.model.slots();
    distributed_ = asked.optimizer == OptimizerFiles::automatic
                       ? std::ranges::find(slots, distributed_master_slot) != slots.end()
                       : asked.optimizer == OptimizerFiles::distributed;
    std::optional<TensorId> const bias = job.model.find_tensor("experts.down_bias");
    bool const apart = job.count("expert") > 0 &&
                       are_experts_apart(sizes_of(job.request.target.mesh), names.release());
    settings_ = optimizer_settings(job.source, *job.record, apart, bias && job.model.exists(*bias));
    set_args(job, asked);
  }

  void set_args(MappedTarget const& job, TargetOptions const& asked) {
    set("use_distributed_optimizer", distributed_);
    if (!fact(all_args_, "no_save_optim").is_null()) set("no_save_optim", Json());
    if (!distributed_) return;
    if (asked.overlap_grad_reduce) set("overlap_grad_reduce", *asked.overlap_grad_reduce);
    if (asked.bucket_size > 0) set("ddp_bucket_size", asked.bucket_size);
    // Sizes of the default bucket follow from it; without a word it stays as it was.
    Json const before = fact(job.read.facts.args, "data_parallel_size");
    if (asked.data_parallel_size > 0)
      set("data_parallel_size", asked.data_parallel_size);
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

FormatOptions<TargetOptions> target_options() {
  constexpr std::int64_t most_elements = std::int64_t{1} << 40;
  std::vector<FormatId> const here = {FormatId::megatron};
  return {
      {here, keys::choice("mp_rank_style", &TargetOptions::mp_rank_style, {"megatron", "full3d"},
                          "Megatron only: \"megatron\" leaves out the number of an unused axis, "
                          "\"full3d\" always writes mp_rank_TT_PPP_EEE.")},
      {here, keys::choice("optimizer", &TargetOptions::optimizer, {"auto", "inline", "distributed"},
                          "Megatron only: optimizer state goes into model_optim_rng.pt, "
                          "\"inline\", or into the distrib_optim.pt of the\n"
                          "distributed optimizer, \"distributed\"; \"auto\" keeps the source's "
                          "form.")},
      {here, keys::one_of<TargetOptions, std::optional<bool>>(
                 "overlap_grad_reduce", &TargetOptions::overlap_grad_reduce,
                 {{"auto", std::nullopt}, {"on", true}, {"off", false}},
                 "Megatron only, for distrib_optim.pt: whether training starts with "
                 "--overlap-grad-reduce; \"auto\": as the source's args say.")},
      {here, keys::number("bucket_size", &TargetOptions::bucket_size, 0, most_elements,
                          "Megatron only, for distrib_optim.pt: --ddp-bucket-size; 0 means: as "
                          "the source's args say.")},
      {here, keys::number("data_parallel_size", &TargetOptions::data_parallel_size, 0, most_ranks,
                          "Megatron only, for distrib_optim.pt without a bucket size: "
                          "data-parallel ranks; 0 means: as the source's args say.")},
  };
}

TargetTraits MegatronFormat::target() const {
  return {.names = NameOwner::megatron, .storage = Storage::shares, .rank_states = true};
}

void MegatronFormat::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  MegatronNames const names(job);
  Mesh const& mesh = job.request.target.mesh;
  names.warn_of_unknown_padding(draft.warnings);
  Side const side(job.model, job.read.names.maps.core, names.side_options(true));
  draft.target_adds = side.adds();
  ExtraStates extras(names.spec, names.form, job.request.read.foreign_classes);
  Index const experts = job.count("expert");
  if (names.renumbers()) {  // states of modules have the numbers of other layers
    if (has_module_states(job.source)) draft.warnings.push_back(renumbered_states_warning);
  } else if (job.source.storage == Storage::shares) {
    extras.set_names(job.read.facts.traits.names, job.read.names.target_trainer);
    extras.take(job.source, job.read.stored.chunks, experts);
    extras.use_source_keys(same_names(job.read.facts.traits.names, job.read.names.target_trainer) &&
                           names.spec == job.read.facts.traits.spec &&
                           (experts == 0 || names.form == job.read.facts.traits.form));
  } else if (job.source.storage == Storage::chunks && job.read.is_megatron()) {
    extras.set_names(job.read.facts.traits.names, job.read.names.target_trainer);
    extras.take_objects(job.source);
  } else {
    extras.set_names({}, job.read.names.target_trainer);
  }
  draft.stated = {names.stated_args(side), names.side_options(true)};
  draft.file_mesh = shard_mesh(sizes_of(mesh));
  draft.layout = layout_text(sizes_of(mesh));
  MegatronTarget target;
  target.chunks = pipeline_chunks(job.request.target.pipeline);
  target.record = job.record;
  target.source_args = names.args_before();
  target.release = names.release();
  target.args = names.args();
  target.extras = &extras;
  TargetParts const parts{&job.model, &side, job.dtypes, &job.request};
  std::optional<StatePlan> const plan = StatePlan::of(job, names, side);
  std::optional<StateTarget> state;
  if (plan) {
    draft.master_slot = plan->distributed() ? distributed_master_slot : master_slot;
    state.emplace(plan->model(parts, target.chunks));
    target.state = &*state;
    target.distributed = plan->distributed();
    target.last_args = plan->args();
  }
  draft.opaque = plan_megatron_target(draft, parts, target).opaque;
  if (state) draft.own_masters.assign(state->own_masters().begin(), state->own_masters().end());
  if (state && !state->frozen().empty()) {
    draft.frozen.assign(state->frozen().begin(), state->frozen().end());
    draft.warnings.push_back(fmt::format(
        "{} {} no optimizer state, and the optimizer of the target treats {} as frozen ({})",
        counted(draft.frozen.size(), "parameter"), agreeing(draft.frozen.size(), "has", "have"),
        agreeing(draft.frozen.size(), "it", "them"), listed(draft.frozen, 6)));
  }
  if (state && state->depends_on_buckets()) draft.warnings.push_back(plan->bucket_warning());
}

/// Names of global tensors cannot be in rank files: the plan has refused this.
void MegatronFormat::lay_out_named(NamedTarget const& /*job*/, TargetDraft& /*draft*/) const {
  fail(ErrorKind::internal, "a Megatron target cannot keep names");
}

}  // namespace reshard::megatron
