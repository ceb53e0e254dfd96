#include "stages/plan/job_plan.hpp"

#include <algorithm>
#include <set>

#include "core/base/sight.hpp"
#include "core/base/text.hpp"
#include "core/containers/hdf5/keys.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/megatron/args.hpp"
#include "core/formats/megatron/mesh.hpp"
#include "stages/plan/check/args_proof.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/config/config_members.hpp"
#include "stages/plan/config/expected_names.hpp"
#include "stages/plan/identity_plan.hpp"
#include "stages/plan/source/settled_configs.hpp"
#include "stages/plan/source/source_model.hpp"
#include "stages/plan/source/state_policy.hpp"
#include "stages/plan/target/dist_files.hpp"
#include "stages/plan/target/dist_objects.hpp"
#include "stages/plan/target/quant_config.hpp"
#include "stages/plan/target/target_dist.hpp"
#include "stages/plan/target/target_hdf5.hpp"
#include "stages/plan/target/target_side.hpp"
#include "stages/plan/value_changes.hpp"

namespace reshard {
namespace {

using Format = TargetRequest::Format;
using Args = std::vector<std::pair<std::string, Json>>;

/// The target of a job whose source was read through a map.
class JobPlanner {
 public:
  JobPlanner(SourceCheckpoint const& source, TargetRequest const& request, PlanLimits const& limits)
      : source_(source), request_(request), limits_(limits) {}

  JobPlan run() {
    job_.warnings = source_.warnings;
    if (!source_.dcp && !request_.source_prefix.empty())
      fail(
          ErrorKind::usage,
          "[source] prefix = \"{}\": keys of a {} source have no prefix to cut off in this job. Remove the key.",
          request_.source_prefix, source_.megatron ? "Megatron" : "Hugging Face");
    check_state(source_, request_, job_.warnings);
    model_ = read_source_model(source_, request_, carries_state(source_, request_));
    settle_configs(model_, source_, request_);
    job_.warnings.insert(job_.warnings.end(), model_.warnings.begin(), model_.warnings.end());
    job_.map_name = model_.maps.family ? model_.maps.family->name : "";
    if (model_.maps.family && to_megatron()) plain_ = model_.as_it_is();
    job_.model = std::move(model_.model);
    job_.source = std::move(model_.catalog);
    dtypes_ = dtypes_of(job_.source);
    int const vocab = job_.model->axes().find("vocab");
    if (model_.recorded_vocab && vocab >= 0)
      job_.model->mean_only(static_cast<AxisId>(vocab), *model_.recorded_vocab);
    if (model_.is_megatron()) record_ = run_record(source_);
    if (record_) settle_foreign_classes(*record_, request_.foreign_classes, job_.warnings);
    complete_request();
    if (to_megatron()) carry_config();
    job_.opaque = plan_target();
    change_values(*job_.model, job_.source, job_.target, {model_.adds, target_adds_});
    job_.target_adds = target_adds_;
    job_.plan = make_plan(*job_.model, job_.source, job_.target, limits_, job_.opaque);
    return std::move(job_);
  }

 private:
  static std::vector<std::optional<DType>> dtypes_of(Catalog const& catalog) {
    std::vector<std::optional<DType>> result;
    for (TensorPieces const& tensor : catalog.tensors)
      result.push_back(tensor.blobs.empty()
                           ? std::nullopt
                           : std::optional<DType>(catalog.blobs[tensor.blobs.front()].dtype));
    return result;
  }

  Index count(char const* word) const {
    Json const value = job_.model->value(word);
    return value.integer() == nullptr ? 0 : *value.integer();
  }

  bool to_megatron() const {
    return request_.format == Format::megatron || request_.format == Format::torch_dist ||
           request_.format == Format::fsdp_dtensor;
  }

  void complete_request() {
    request_.pipeline.decoder_layers = static_cast<int>(count("L"));
    request_.pipeline.mtp_layers = static_cast<int>(count("M"));
    std::string const& form = model_.traits.form;
    if (request_.spec.empty()) request_.spec = model_.is_megatron() ? model_.traits.spec : "te";
    if (request_.form.empty()) request_.form = source_.megatron ? form : default_form();
    std::string const of_experts = mesh_axis_of(model_.maps.core, "expert");
    if (request_.format != Format::huggingface && !has_experts() &&
        request_.mesh.size(of_experts) > 1)
      fail(
          ErrorKind::usage,
          "[target] layout.{} = {}: the model has 0 experts, so nothing can be cut along this axis. Set layout.{} = 1.",
          of_experts, request_.mesh.size(of_experts), of_experts);
  }

  /// Where the source has no args, Megatron is told what it can be told; all of config.json travels
  /// along.
  void carry_config() {
    add_carried(job_, model_.files);
    if (record_ || !model_.args.is_null() || !model_.maps.family || model_.config.is_null()) return;
    if (to_megatron())
      refuse_special_numbers(
          *model_.maps.family,
          args_from_config(*model_.maps.family, model_.maps.core, model_.config));
    std::string const lost = unheld_warning(*model_.maps.family, model_.maps.core, model_.config,
                                            job_.reference.has_value());
    if (!lost.empty()) job_.warnings.push_back(lost);
  }

  /// Whether any layer has routed experts: a config can count experts that no layer uses.
  bool has_experts() const {
    int const expert = job_.model->axes().find("expert");
    for (std::size_t t = 0; t < job_.model->tensors().size(); ++t)
      for (LogicalAxis const& axis : job_.model->tensors()[t].axes)
        if (static_cast<int>(axis.axis) == expert && job_.model->exists(static_cast<int>(t)))
          return true;
    return false;
  }

  /// How a checkpoint that does not show it would be stored by the program that saved it.
  std::string default_form() const {
    Json const grouped = fact(model_.args, "moe_grouped_gemm");
    if (grouped.boolean() != nullptr) return *grouped.boolean() ? "grouped" : "sequential";
    return request_.spec == "te" ? "grouped" : "sequential";
  }

  std::vector<OpaqueCopy> plan_target() {
    switch (request_.format) {
      case Format::huggingface: plan_huggingface(); return {};
      case Format::hdf5: return plan_hdf5();
      case Format::megatron: return plan_megatron();
      case Format::torch_dist:
      case Format::fsdp_dtensor: return plan_dist();
      case Format::dcp: break;
    }
    fail(
        ErrorKind::usage,
        "[target] format = \"dcp\": names of a plain DCP checkpoint are the source's, which a Megatron source has only rank by rank. Choose "
        "torch_dist or "
        "huggingface.");
  }

  std::vector<OpaqueCopy> plan_hdf5() {
    Hdf5Target target = logical_hdf5_target(*job_.model, model_, dtypes_);
    target.part_bytes = request_.shard_bytes;
    target.attributes.emplace_back(hdf5::software_version_key, request_.tool_version);
    if (model_.reference || !model_.config_text.empty())
      add_sidecars(job_, {model_.reference, model_.config_text});
    return plan_hdf5_target(job_, std::move(target));
  }

  void plan_huggingface() {
    SideOptions options;
    options.has = [this](std::string_view name) { return reference_has(name); };
    Side const side(*job_.model, *model_.maps.family, std::move(options));
    target_adds_ = side.adds();
    plan_huggingface_target(job_, {job_.model.get(), &side, dtypes_, &request_},
                            {model_.reference, model_.config_text});
    check_reference_names();
    for (huggingface::ConfigPatch const& change : model_.config_changes) patch_config(job_, change);
    std::vector<StoredName> names;
    if (!job_.model->schemes().empty()) names = side.names(nullptr);  // else nothing is quantised
    describe_quantised(job_, *job_.model, side, names, fact(model_.args, "quantization_config"));
  }

  /// A reference of another family asks for names of its own.
  void check_reference_names() const {
    if (request_.reference.empty()) return;
    Json const type = fact(model_.reference->config, "model_type");
    auto const& known = model_.maps.family->model_types;
    if (type.text() == nullptr ||
        std::find(known.begin(), known.end(), *type.text()) != known.end())
      return;
    std::set<std::string, std::less<>> names;
    for (Blob const& blob : job_.target.blobs) names.insert(blob.name);
    auto const expected = expected_names(model_.reference->config, names, request_.map_folders);
    if (expected && !expected->lacking.empty())
      fail(ErrorKind::source, "target.reference: {}. Give the folder of this model.",
           lacking_sentence(*expected, names, config_name_of(*model_.reference)));
  }

  SideOptions named_options(bool local) const {
    SideOptions options;
    options.local = local;
    options.mesh = request_.mesh;
    options.options = {
        {"form", request_.form},
        {"spec", request_.spec},
        {"mtp_block", source_.megatron ? model_.traits.mtp_block : "mtp_model_layer"}};
    options.place = "[target] layout.";
    Index const rows = model_.traits.padded_vocab;
    if (all_rows_are_data() &&
        rows % request_.mesh.size(mesh_axis_of(model_.maps.core, "vocab")) == 0)
      options.padded_sizes["vocab"] = rows;  // kept as they are
    return options;
  }

  std::vector<OpaqueCopy> plan_megatron() {
    warn_of_unknown_padding();
    Side const side(*job_.model, model_.maps.core, named_options(true));
    target_adds_ = side.adds();
    ExtraStates extras(request_.spec, request_.form, request_.foreign_classes);
    Index const experts = count("expert");
    if (source_.megatron) {
      extras.take(*source_.megatron, model_.chunks, experts);
      extras.use_source_keys(request_.spec == model_.traits.spec &&
                             (experts == 0 || request_.form == model_.traits.form));
    } else if (source_.dcp && model_.is_megatron()) {
      extras.take(*source_.dcp, source_.files);
    }
    check_args(side, named_options(true));
    MegatronTarget target{pipeline_chunks(request_.pipeline), record_ ? &*record_ : nullptr,
                          model_.args, target_args(), &extras};
    return plan_megatron_target(job_, {job_.model.get(), &side, dtypes_, &request_}, target);
  }

  /// Without a recorded vocabulary size all rows are data.
  bool all_rows_are_data() const {
    return !model_.maps.family && model_.traits.padded_vocab > 0 && request_.true_vocab_size == 0 &&
           !model_.recorded_vocab;
  }

  void warn_of_unknown_padding() {
    if (!all_rows_are_data()) return;
    job_.warnings.push_back(fmt::format(
        "args do not say how many of the embedding's {} rows are vocabulary: all are kept. Set model.true_vocab_size to repad.",
        model_.traits.padded_vocab));
  }

  Side dist_side(bool stacked) const {
    return {*job_.model, model_.maps.core, dist_options(stacked)};
  }

  SideOptions dist_options(bool stacked) const {
    bool const fsdp = request_.format == Format::fsdp_dtensor;
    SideOptions options = named_options(false);
    options.in_front = true;
    options.options["form"] = Json(!fsdp                        ? "dist"
                                   : request_.form == "grouped" ? "fsdp"
                                                                : "fsdp_sequential");
    options.options["stacked"] = Json(stacked && !fsdp ? 1 : 0);
    options.options["halves"] = Json(fsdp ? 1 : 0);
    options.options["parts"] = Json(fsdp ? 0 : 1);
    return options;
  }

  /// Layers go into one key where they did in the source, else where Megatron would do so: when all
  /// are alike.
  bool stack_layers() {
    if (request_.format == Format::fsdp_dtensor || request_.layers == LayerKeys::separate)
      return false;
    bool const asked = request_.layers == LayerKeys::stacked;
    if (!asked && source_.dcp && source_.dcp->flavour == dcp::Flavour::torch_dist)
      return model_.view->stacked;
    if (!asked && has_layer_pattern()) return false;
    bool const alike = layers_are_alike(dist_side(true), count("L"));
    if (asked && !alike)
      fail(
          ErrorKind::usage,
          "[target] layers = \"stacked\": the model's layers are not all alike, so they have no common tensors. Set layers = \"separate\".");
    return alike;
  }

  /// Megatron keeps layers apart where args spell out which have experts, even when the answer is
  /// all.
  bool has_layer_pattern() const {
    if (count("expert") == 0) return false;
    Json pattern = fact(model_.args, "moe_layer_freq");
    for (auto const& [key, value] : target_args())
      if (key == "moe_layer_freq") pattern = value;
    return pattern.items() != nullptr || pattern.text() != nullptr ||
           (pattern.integer() != nullptr && *pattern.integer() > 1);
  }

  std::vector<OpaqueCopy> plan_dist() {
    if (request_.format == Format::fsdp_dtensor && count("M") > 0)
      fail(
          ErrorKind::usage,
          "[target] format = \"fsdp_dtensor\": the model has multi-token prediction, whose inner layers have other names in every Megatron release. "
          "Choose torch_dist, whose names do not change.");
    bool const stacked = stack_layers();
    warn_of_unknown_padding();
    Side const side = dist_side(stacked);
    check_further_axes(side);
    target_adds_ = side.adds();
    check_args(side, dist_options(false));
    TargetParts const parts{job_.model.get(), &side, dtypes_, &request_};
    DistTensors const dist{pipeline_chunks(request_.pipeline), model_.states,
                           request_.format == Format::fsdp_dtensor};
    if (dist.fsdp) return plan_fsdp(parts, dist);
    DcpTarget target(job_, run_folder(record_ ? &*record_ : nullptr));
    add_objects(target, side, stacked);
    add_dist_tensors(target, parts, dist);
    std::vector<OpaqueCopy> opaque = target.finish(std::nullopt);
    add_dist_files(job_, dist_record(side), source_);
    return opaque;
  }

  /// A size in the job that would change nothing.
  void check_further_axes(Side const& side) const {
    for (MeshAxis const& axis : megatron::further_axes(request_.mesh))
      if (axis.size > 1 && !side.cuts(axis.name))
        fail(
            ErrorKind::usage,
            "[target] layout.{} = {}: {} cuts no axis of this model along it. Remove the key, or name an axis in the map's [rules].",
            axis.name, axis.size, model_.maps.core.name);
  }

  void add_objects(DcpTarget& target, Side const& side, bool stacked) {
    std::vector<StoredName> const names = side.names(nullptr);
    bool const from_dist = source_.dcp && source_.dcp->flavour == dcp::Flavour::torch_dist;
    bool const same_modules = from_dist && request_.spec == model_.traits.spec;
    ObjectChoice const choice{same_modules, request_.drop_rng, request_.drop_optimizer};
    ObjectGate gate(source_, request_);
    if (from_dist)
      copy_objects(target, *source_.dcp, {stacked, count("L"), count("expert")}, choice, gate);
    gate.warn(job_.warnings);
    if (same_modules) return;
    ExtraStates extras(request_.spec, from_dist ? "sequential" : request_.form,
                       request_.foreign_classes);
    if (source_.megatron) extras.take(*source_.megatron, model_.chunks, count("expert"));
    if (from_dist) extras.take(*source_.dcp, source_.files);
    make_objects(target, extras, names);
  }

  std::vector<OpaqueCopy> plan_fsdp(TargetParts const& parts, DistTensors const& dist) {
    RunRecord const* record = record_ ? &*record_ : nullptr;
    DcpTarget target(job_, run_folder(record));
    std::vector<std::pair<std::string, dcp::Path>> paths;
    for (auto& [key, bytes] : fsdp_objects(dist_record(*parts.side))) {
      target.add_object(key, 0, std::move(bytes));
      paths.emplace_back(key, dcp::Path{key});
    }
    add_dist_tensors(target, parts, dist);
    for (StoredName const& name : parts.side->names(nullptr))
      paths.emplace_back("model.module." + name.name,
                         dcp::Path{std::string("model"), "module." + name.name});
    std::vector<OpaqueCopy> opaque = target.finish(std::move(paths));
    add_tracker(job_, record);
    return opaque;
  }

  DistRecord dist_record(Side const& side) const {
    DistRecord record;
    record.record = record_ ? &*record_ : nullptr;
    record.has_states = !model_.states.empty();
    int const bias = job_.model->find_tensor("experts.down_bias");
    record.expert_biases = bias >= 0 && job_.model->exists(bias);
    record.experts_apart =
        count("expert") > 0 && request_.mesh.size(mesh_axis_of(model_.maps.core, "expert")) > 1;
    bool const from_dist = source_.dcp && record.record != nullptr;
    if (!from_dist) {
      Args const sizes = megatron::target_args(
          {megatron::sizes_of(request_.mesh), request_.pipeline, side.padded_size("vocab")},
          model_.args);
      record.args = target_args();
      record.args.insert(record.args.end(), sizes.begin(), sizes.end());
      record.args.emplace_back(
          "ckpt_format", request_.format == Format::torch_dist ? "torch_dist" : "fsdp_dtensor");
    }
    if (!from_dist || request_.drop_optimizer) record.args.emplace_back("no_save_optim", true);
    if (!from_dist || request_.drop_rng) record.args.emplace_back("no_save_rng", true);
    record.drop_states = request_.drop_optimizer;
    record.new_keys = !from_dist || source_.dcp->flattened ||
                      model_.view->traits.form == "singleton" || request_.drop_optimizer;
    return record;
  }

  /// Where no Megatron file is: what a container kept of one, else what the family makes of
  /// config.json.
  Args made_args() const {
    if (Json::Object const* kept = model_.args.members()) return *kept;
    Args args = job_.model->evaluate(model_.maps.family->args);
    // Megatron-Core looks whether its config has these, not what they are.
    bool const yarn = std::any_of(args.begin(), args.end(), [](auto const& arg) {
      return arg.first.starts_with("yarn_") && !arg.second.is_null();
    });
    if (!yarn) std::erase_if(args, [](auto const& arg) { return arg.first.starts_with("yarn_"); });
    int const embed = job_.model->find_tensor("embed");
    DType const dtype =
        embed >= 0 ? dtypes_[static_cast<std::size_t>(embed)].value_or(DType::bf16) : DType::bf16;
    args.emplace_back("params_dtype", dtype == DType::bf16  ? "torch.bfloat16"
                                      : dtype == DType::f16 ? "torch.float16"
                                                            : "torch.float32");
    args.emplace_back("bf16", dtype == DType::bf16);
    args.emplace_back("fp16", dtype == DType::f16);
    args.emplace_back("make_vocab_size_divisible_by", 128);
    args.emplace_back("iteration", 0);
    args.emplace_back("consumed_train_samples", 0);
    args.emplace_back("consumed_valid_samples", 0);
    return args;
  }

  Args target_args() const {
    bool const made = !record_;
    Args args = made ? made_args() : Args();
    // Not Megatron's own, but a later job needs to know block sizes, and how config.json spoke of
    // the weights.
    Json const quantised = fact(made ? model_.config : model_.args, "quantization_config");
    if (!quantised.is_null() && (made || request_.dequantise))
      args.emplace_back("quantization_config", request_.dequantise ? Json() : quantised);
    if (made || request_.spec != model_.traits.spec)
      args.emplace_back("transformer_impl", request_.spec == "te" ? "transformer_engine" : "local");
    if (count("expert") > 0 && (made || request_.form != source_form()))
      args.emplace_back("moe_grouped_gemm", request_.form == "grouped");
    return args;
  }

  /// Every argument that the target will have.
  Json all_args(Side const& side) const {
    Json result = record_ ? model_.args : Json::object();
    for (auto& [key, value] : target_args()) result.set(key, std::move(value));
    for (auto& [key, value] : megatron::target_args(
             {megatron::sizes_of(request_.mesh), request_.pipeline, side.padded_size("vocab")},
             model_.args))
      result.set(key, std::move(value));
    return result;
  }

  /// Args that a family's map stands behind must say what the target holds: a later job, and
  /// Megatron, has nothing else.
  void check_args(Side const& side, SideOptions const& options) {
    if (!plain_) return;
    Json const args = all_args(side);
    check_made_args(*plain_, model_.maps.core, model_.maps.family->name, args, options,
                    job_.warnings);
    if (model_.is_megatron()) return;  // its own Megatron has such layers
    std::string note = strict_load_note(*plain_, model_.maps.core, args, options);
    if (!note.empty()) job_.warnings.push_back(std::move(note));
  }

  std::string source_form() const { return source_.megatron ? model_.traits.form : default_form(); }

  /// The stored names of the reference: its index, or the header of its only file.
  bool reference_has(std::string_view name) {
    if (!model_.reference) return false;
    if (!reference_names_) {
      reference_names_.emplace();
      for (auto const& [tensor, file] : model_.reference->weight_map)
        reference_names_->insert(tensor);
      auto const single = model_.reference->path / huggingface::single_file_name;
      if (reference_names_->empty() && sees_file(single))
        for (FileTensor const& tensor :
             safetensors::read_header(File::open_for_reading(single)).tensors)
          reference_names_->insert(tensor.name);
    }
    if (name.find_first_of("*?") == std::string_view::npos) return reference_names_->contains(name);
    return std::any_of(reference_names_->begin(), reference_names_->end(),
                       [&](std::string const& known) { return matches_glob(name, known); });
  }

  SourceCheckpoint const& source_;
  TargetRequest request_;
  PlanLimits limits_;
  JobPlan job_;
  SourceModel model_;
  std::vector<std::optional<DType>> dtypes_;
  std::optional<RunRecord> record_;
  std::optional<Model> plain_;  ///< the model with every weight as it is, where a family's map
                                ///< describes a Megatron target
  std::vector<int> target_adds_;
  std::optional<std::set<std::string, std::less<>>> reference_names_;
};

}  // namespace

JobPlan make_job_plan(SourceCheckpoint const& source, TargetRequest const& request,
                      PlanLimits const& limits) {
  if (keeps_names(source, request)) return make_identity_plan(source, request, limits);
  return JobPlanner(source, request, limits).run();
}

JobPlan catalogue(SourceCheckpoint const& source, TargetRequest const& request) {
  if (request.map == "none" || (source.dcp && source.dcp->flavour == dcp::Flavour::plain &&
                                request.source_config.empty() && source.dcp->config.is_null()))
    return identity_catalogue(source);
  SourceModel model = read_source_model(source, request, true);
  JobPlan job;
  job.map_name = model.maps.family ? model.maps.family->name : "";
  job.warnings = std::move(model.warnings);
  job.model = std::move(model.model);
  job.source = std::move(model.catalog);
  job.adds = std::move(model.adds);
  return job;
}

}  // namespace reshard
