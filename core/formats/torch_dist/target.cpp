#include <algorithm>

#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/mcore/traits.hpp"
#include "core/formats/megatron/named_target.hpp"
#include "core/formats/megatron/state/rank_settings.hpp"
#include "core/formats/megatron/state/rank_states.hpp"
#include "core/formats/torch_dist/dist_files.hpp"
#include "core/formats/torch_dist/dist_objects.hpp"
#include "core/formats/torch_dist/dist_tensors.hpp"
#include "core/formats/torch_dist/formats.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "core/mapping/quant_finder.hpp"

namespace reshard::dcp {
namespace {

using megatron::MegatronNames;

/// The slot of master weights that the distributed optimizer has.
constexpr std::string_view own_master = "param";

/// A torch_dist or fsdp_dtensor checkpoint with the names of mcore.toml.
class DistTarget {
 public:
  DistTarget(MappedTarget const& job, bool fsdp, TargetDraft& draft)
      : job_(job), fsdp_(fsdp), draft_(draft), names_(job) {}

  void run() {
    if (fsdp_ && job_.count("M") > 0 && !names_.source_names_prediction())
      fail(
          ErrorKind::usage,
          "[target] format = \"fsdp_dtensor\": the model has multi-token prediction, whose inner layer is transformer_layer up to Megatron-Core 0.16 and "
          "mtp_model_layer since, and the source does not show which release will load the target. Choose torch_dist, whose names do not change.");
    bool const stacked = stack_layers();
    names_.warn_of_unknown_padding(draft_.warnings);
    Side const side = dist_side(stacked);
    check_further_axes(side);
    draft_.target_adds = side.adds();
    draft_.stated = {names_.stated_args(side), dist_options(false)};
    TargetParts const parts{&job_.model, &side, job_.dtypes, &request()};
    DistTensors const tensors{pipeline_chunks(request().target.pipeline), fsdp_,
                              job_.read.names.target_trainer.root};
    DcpTarget target(draft_, run_folder(job_.record, is_numbered()));
    if (fsdp_)
      finish_fsdp(target, parts, tensors);
    else
      finish_dist(target, parts, tensors, stacked);
  }

 private:
  PlanRequest const& request() const { return job_.request; }
  megatron::TargetProgram program() const { return request().options.named.program; }
  bool holds_slot(std::string_view word) const {
    auto const& slots = job_.model.slots();
    return std::ranges::find(slots, word) != slots.end();
  }
  /// Whether a torch_dist target takes over the keys of the source's objects.
  bool same_objects() const { return job_.source.format->id() == FormatId::torch_dist; }

  /// Refuses a mesh size of the job that would have no effect.
  void check_further_axes(Side const& side) const {
    for (MeshAxis const& axis : megatron::further_axes(request().target.mesh))
      if (axis.size > 1 && !side.cuts(axis.name))
        fail(ErrorKind::usage,
             "[target] layout.{} = {}: no rule of {} splits this model along it. Remove the "
             "key, or name an axis in the map's [rules].",
             axis.name, axis.size, job_.read.names.maps.core.name);
  }

  void finish_dist(DcpTarget& target, TargetParts const& parts, DistTensors const& tensors,
                   bool stacked) {
    add_objects(target, *parts.side, stacked);
    add_dist_tensors(target, parts, tensors);
    draft_.opaque = target.finish(std::nullopt);
    DistRecord record = dist_record(*parts.side);
    warn_of_chains(record);
    if (record.has_states && same_objects() && job_.record != nullptr)
      check_settings(job_.record->document(), job_.record->file);
    std::optional<pickle::Document> settings;
    if (record.has_states && !same_objects() && job_.record != nullptr) {
      settings = common_settings(job_.source, *job_.record);
      record.settings = &*settings;
      record.plain_states = !holds_slot(own_master);
    }
    add_dist_files(draft_, record, job_.source);
  }

  void finish_fsdp(DcpTarget& target, TargetParts const& parts, DistTensors const& tensors) {
    std::vector<std::pair<std::string, Path>> paths;
    auto const add = [&](std::vector<PlacedObject> objects) {
      for (PlacedObject& object : objects) {
        target.add_object(object.key, 0, std::move(object.bytes));
        paths.emplace_back(std::move(object.key), std::move(object.path));
      }
    };
    DistRecord const record = dist_record(*parts.side);
    add(fsdp_objects(record));
    if (record.has_states && job_.record != nullptr)
      add(group_setting_objects(
          megatron::optimizer_settings(job_.source, *job_.record, record.experts_apart,
                                       record.expert_biases),
          parts, job_.read.facts.args, record.experts_apart));
    add_dist_tensors(target, parts, tensors);
    for (auto& one : fsdp_paths(parts)) paths.push_back(std::move(one));
    draft_.opaque = target.finish(std::move(paths));
    add_tracker(draft_, job_.record);
  }

  Side dist_side(bool stacked) const {
    return {job_.model, job_.read.names.maps.core, dist_options(stacked)};
  }

  SideOptions dist_options(bool stacked) const {
    SideOptions options = names_.side_options(false);
    options.in_front = true;
    options.options["form"] = Json(!fsdp_ ? keeps_pieces() ? "singleton" : "dist"
                                   : names_.form == "grouped" ? "fsdp"
                                                              : "fsdp_sequential");
    options.options["stacked"] = Json(stacked && !fsdp_ ? 1 : 0);
    options.options["vis_stacked"] = Json(!fsdp_ && stack_tower() ? 1 : 0);
    options.options["halves"] = Json(fsdp_ || keeps_pieces() ? 1 : 0);
    options.options["parts"] = Json(fsdp_ ? 0 : 1);
    options.options["numbered_biases"] = Json(
        request().target.mesh.size(mesh_axis_of(job_.read.names.maps.core, "expert")) == 1 ? 1 : 0);
    return options;
  }

  /// Whether experts, and gate and up, have keys of their own because a program of the source needs
  /// that, as ModelOpt, whose quantisers have values next to fused weights.
  bool keeps_pieces() const {
    return same_objects() &&
           (job_.read.facts.traits.halves || job_.read.facts.traits.form == "singleton") &&
           find_fused_part(job_.model, false);
  }

  /// Megatron stacks the layers of a vision tower, which always have the same form.
  bool stack_tower() const {
    if (request().options.dist.layers == LayerKeys::automatic && same_objects() &&
        job_.read.facts.traits.names.tower == "mcore")
      return job_.read.facts.traits.names.tower_stacked;
    return request().options.dist.layers != LayerKeys::separate;
  }

  bool same_names() const {
    TrainerNames const& source = job_.read.facts.traits.names;
    TrainerNames const& target = job_.read.names.target_trainer;
    return megatron::same_names(source, target) &&
           (target.tower != "mcore" || source.tower_stacked == stack_tower());
  }

  /// Whether layers go into one key: as in the source, else as Megatron does, if all have the same
  /// form.
  bool stack_layers() const {
    if (fsdp_ || request().options.dist.layers == LayerKeys::separate) return false;
    bool const asked = request().options.dist.layers == LayerKeys::stacked;
    if (names_.is_hybrid()) {
      if (!asked) return false;
      fail(
          ErrorKind::usage,
          "[target] layers = \"stacked\": Megatron-Core keeps the layers of a hybrid model apart. Set layers = \"separate\".");
    }
    if (!asked && same_objects() && !names_.renumbers()) return job_.read.facts.traits.stacked;
    if (!asked && has_layer_pattern()) return false;
    bool const alike =
        job_.count("attention_kinds") != 0 ||  // their names differ
        layers_are_alike(dist_side(true), job_.count("L"), job_.read.names.target_trainer.root);
    if (asked && !alike)
      fail(
          ErrorKind::usage,
          "[target] layers = \"stacked\": the model's layers are not all alike, so they have no common tensors. Set layers = \"separate\".");
    return alike;
  }

  /// Megatron keeps layers apart where args spell out which have experts, even when the answer is
  /// all or none.
  bool has_layer_pattern() const {
    Json pattern = fact(job_.read.facts.args, "moe_layer_freq");
    for (auto const& [key, value] : names_.args())
      if (key == "moe_layer_freq") pattern = value;
    return pattern.items() != nullptr || pattern.text() != nullptr ||
           (pattern.integer() != nullptr && *pattern.integer() > 1);
  }

  void add_objects(DcpTarget& target, Side const& side, bool stacked) {
    std::vector<StoredName> const names = side.names(nullptr);
    bool const from_dist = same_objects();
    bool const same_modules = from_dist && names_.spec == job_.read.facts.traits.spec &&
                              !names_.renumbers() && same_names();
    ObjectChoice const choice{same_modules, request().read.drop_rng, request().read.drop_optimizer};
    ObjectGate gate(job_.source, request());
    if (from_dist)
      copy_objects(target, job_.source,
                   {stacked, job_.count("L"), job_.count("expert"),
                    job_.read.names.target_trainer.root, keeps_pieces()},
                   choice, gate);
    gate.warn(draft_.warnings);
    if (same_modules || !job_.model.adapter_ranks().empty()) return;
    ExtraStates extras(names_.spec, from_dist ? "sequential" : names_.form,
                       request().read.foreign_classes);
    if (names_.renumbers()) {  // states of modules have the numbers of other layers
      if (megatron::has_module_states(job_.source))
        draft_.warnings.push_back(megatron::renumbered_states_warning);
      return make_objects(target, extras, names, job_.read.names.target_trainer.root);
    }
    extras.set_names(job_.read.facts.traits.names, job_.read.names.target_trainer);
    if (job_.source.storage == Storage::shares)
      extras.take(job_.source, job_.read.stored.chunks, job_.count("expert"));
    if (from_dist) extras.take_objects(job_.source);
    make_objects(target, extras, names, job_.read.names.target_trainer.root);
  }

  /// A warning is needed because args of such a source are not changed.
  void warn_of_chains(DistRecord const& record) {
    Json const& args = job_.read.facts.args;
    if (!same_objects() || !record.has_states || job_.count("expert") == 0 ||
        fact(args, "expert_model_parallel_size").is_null())
      return;
    megatron::MeshSizes const then = megatron::stated_sizes(args, job_.source.place);
    megatron::MeshSizes const now = megatron::sizes_of(request().target.mesh);
    if (megatron::are_experts_apart(then, megatron::release_of(args)) == record.experts_apart)
      return;
    draft_.warnings.push_back(fmt::format(
        "experts {} in the target, because target.layout is {}; the source was saved with {}. Set "
        "target.layout to the sizes that training will use",
        record.experts_apart ? "have their own optimizer"
                             : "share one optimizer with the other weights",
        megatron::layout_text(now), megatron::layout_text(then)));
  }

  /// Megatron-Bridge expects folders of iterations, and ms-swift reads the tracker as a number.
  bool is_numbered() const {
    return program() == megatron::TargetProgram::megatron_bridge ||
           program() == megatron::TargetProgram::ms_swift;
  }

  /// Whether files copied along with the source's common state describe the model: its config.json,
  /// or the settings of another program in the folder of the tensors.
  bool carries_facts() const {
    if (program() == megatron::TargetProgram::megatron_lm) return false;
    if (job_.read.facts.files && !job_.read.facts.files->config.is_null()) return true;
    auto const& shape = job_.source.shares.shape;
    if (!shape || shape->facts.is_null()) return false;
    std::filesystem::path const settings = shape->settings;
    return settings.parent_path() == job_.source.folder &&
           std::ranges::find(job_.source.chunked.side_files, settings.filename().string()) !=
               job_.source.chunked.side_files.end();
  }

  DistRecord dist_record(Side const& side) const {
    DistRecord record;
    record.record = job_.record;
    record.numbered = is_numbered();
    // Megatron-LM does not read it, and it describes the source; for Megatron-Bridge a new one is
    // written.
    bool const describes = job_.source.shares.shape && !job_.source.shares.shape->facts.is_null();
    if (job_.source.shares.shape && job_.source.shares.shape->program == "Megatron-Bridge" &&
        (describes || program() != megatron::TargetProgram::as_source))
      record.without =
          std::filesystem::path(job_.source.shares.shape->settings).filename().string();
    record.has_states = job_.model.slots().size() > 1;
    std::optional<TensorId> const bias = job_.model.find_tensor("experts.down_bias");
    record.expert_biases = bias && job_.model.exists(*bias);
    record.experts_apart =
        job_.count("expert") > 0 &&
        megatron::are_experts_apart(megatron::sizes_of(request().target.mesh), names_.release());
    bool const from_dist = same_objects() && record.record != nullptr;
    MegatronNames::Args const sizes =
        megatron::target_args({megatron::sizes_of(request().target.mesh), request().target.pipeline,
                               side.padded_size("vocab"), names_.release()},
                              names_.args_before());
    // Rows of adapters and of quantisers depend on the tensor parallelism in args.
    if (from_dist && (!job_.model.adapter_ranks().empty() || find_fused_part(job_.model, true)))
      record.args = sizes;
    bool const silent = names_.makes_args() && (fsdp_ || !carries_facts());
    if (!from_dist || names_.renumbers() || silent || job_.read.changed) {
      record.args = names_.args();
      record.args.insert(record.args.end(), sizes.begin(), sizes.end());
      record.args.emplace_back("ckpt_format", fsdp_ ? "fsdp_dtensor" : "torch_dist");
    }
    if (!record.has_states && (!from_dist || request().read.drop_optimizer))
      record.args.emplace_back("no_save_optim", true);
    if (!from_dist || request().read.drop_rng) record.args.emplace_back("no_save_rng", true);
    record.drop_states = request().read.drop_optimizer;
    record.singleton = keeps_pieces();
    record.new_keys = !from_dist || job_.read.facts.traits.chained ||
                      job_.source.chunked.flattened || !job_.read.facts.view.buffers.empty() ||
                      (job_.read.facts.traits.form == "singleton" && !keeps_pieces()) ||
                      request().read.drop_optimizer;
    return record;
  }

  MappedTarget const& job_;
  bool fsdp_;
  TargetDraft& draft_;
  MegatronNames names_;
};

}  // namespace

FormatOptions<DistOptions> dist_options() {
  return {
      {{FormatId::torch_dist},
       keys::choice("layers", &DistOptions::layers, {"auto", "stacked", "separate"},
                    "torch_dist only: one key for all layers, \"stacked\", or one for each, "
                    "\"separate\"; \"auto\" keeps the source's form,\n"
                    "else stacks if all layers are alike.")},
      {{FormatId::torch_dist},
       keys::choice("integrity", &DistOptions::integrity, {"auto", "always", "never"},
                    "torch_dist only: write the integrity.json that Megatron's "
                    "--verify-integrity needs; \"auto\": if the source has one.")},
      {{FormatId::torch_dist, FormatId::fsdp_dtensor},
       keys::size("chunk_bytes", &DistOptions::chunk_bytes,
                  "torch_dist and fsdp_dtensor: the chunk size to aim for.")},
  };
}

void lay_out_dist(MappedTarget const& job, bool fsdp, TargetDraft& draft) {
  DistTarget(job, fsdp, draft).run();
}

}  // namespace reshard::dcp
