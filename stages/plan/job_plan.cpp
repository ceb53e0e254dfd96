#include "stages/plan/job_plan.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/capture.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/formats/format.hpp"
#include "core/formats/headers/object_gate.hpp"
#include "core/formats/huggingface/config/config_dtype.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "core/mapping/adapter.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "stages/plan/adapter/adapter_places.hpp"
#include "stages/plan/adapter/merged_adapter.hpp"
#include "stages/plan/adapter/named_adapter.hpp"
#include "stages/plan/adapter/shared_matrices.hpp"
#include "stages/plan/averaged_weights.hpp"
#include "stages/plan/bridge/run_settings.hpp"
#include "stages/plan/change/changed_model.hpp"
#include "stages/plan/change/tokenizer_ids.hpp"
#include "stages/plan/check/args_proof.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/config/config_members.hpp"
#include "stages/plan/config/expected_names.hpp"
#include "stages/plan/config/found_prefix.hpp"
#include "stages/plan/gathering.hpp"
#include "stages/plan/identity_plan.hpp"
#include "stages/plan/quant/made_quant.hpp"
#include "stages/plan/source/catalog/quant_source.hpp"
#include "stages/plan/source/described_source.hpp"
#include "stages/plan/source/facts/megatron_form.hpp"
#include "stages/plan/source/facts/settled_configs.hpp"
#include "stages/plan/source/facts/stated_args.hpp"
#include "stages/plan/source/facts/vocabulary.hpp"
#include "stages/plan/source/source_model.hpp"
#include "stages/plan/source/state/master_weights.hpp"
#include "stages/plan/source/state/state_policy.hpp"
#include "stages/plan/source/state/trained_parameters.hpp"
#include "stages/plan/target_names.hpp"
#include "stages/plan/value_changes.hpp"

namespace reshard {
namespace {

/// The target of a job whose source was read through a map.
class JobPlanner {
 public:
  JobPlanner(Checkpoint const& source, PlanRequest const& request, PlanLimits const& limits)
      : source_(source),
        request_(request),
        target_(format_of(request.target.format)),
        limits_(limits) {
    request_.read.carries_rows = true;
    if (request_.changes.vocab_size > 0) request_.read.true_rows = true;
  }

  JobPlan run(std::function<void()> const& tensors_read) {
    job_.warnings = source_.warnings;
    job_.data_layout = request_.target.data_layout;
    if (source_.storage != Storage::chunks && !request_.read.prefix.empty())
      fail(ErrorKind::usage,
           "[source] prefix = \"{}\": keys of a {} source have no prefix to remove in this job. "
           "Remove the key.",
           request_.read.prefix, source_.format->name());
    check_state(source_, source_.format->view(source_, request_.read.prefix), request_,
                job_.warnings);
    read_source();
    merge_adapter(source_, request_, model_);
    settle_masters(source_, request_, model_);
    check_moments(source_, model_, job_.warnings);
    change_model(source_, request_, model_);
    if (model_.draft && target_.id() != FormatId::huggingface)
      fail(ErrorKind::usage,
           "[target] format = \"{}\": layers for multi-token prediction alone are a draft model, "
           "which engines load from a Hugging Face folder. Set target.format = \"huggingface\".",
           target_.name());
    bool const states = model_.model->slots().size() > 1;
    if (!states && target_.target().needs_masters) add_masters(model_);
    check_tokenizer(source_, request_, model_);
    if (request_.changes.vocab_size > 0)
      request_.read.true_vocab_size = request_.changes.vocab_size;
    settle_configs(model_, source_, request_);
    state_vocabulary(request_, model_);
    job_.warnings.insert(job_.warnings.end(), model_.warnings.begin(), model_.warnings.end());
    job_.map_name = model_.names.maps.family ? model_.names.maps.family->name : "";
    bool const adapter = !model_.model->adapter_ranks().empty();
    if (adapter) check_adapter_target();
    if (model_.names.maps.family && to_megatron())
      require_megatron_form(*model_.model, model_.names.maps.family->name, "[target] format");
    job_.absent.parts = model_.names.parts;
    job_.absent.left_out = model_.stored.left_out;
    job_.absent.by_prefix = !model_.facts.view.unread.empty();
    job_.listing.padding = std::move(model_.stored.padding);
    if (model_.names.maps.family && to_megatron() && !adapter) plain_ = model_.as_it_is();
    job_.model = std::move(model_.model);
    if (target_.target().names == NameOwner::logical) require_logical_form(*job_.model);
    job_.source = std::move(model_.stored.catalog);
    job_.weights = std::move(model_.stored.weights);
    if (!model_.stored.merged_adapter.is_null())
      job_.made_with.set("adapter", model_.stored.merged_adapter);
    job_.configs.model = model_.facts.config;
    job_.absent.incomplete = model_.names.incomplete;
    job_.changed = model_.changed;
    dtypes_ = dtypes_of(job_.source);
    settle_dtypes();
    int const vocab = job_.model->axes().find("vocab");
    if (model_.facts.recorded_vocab && vocab >= 0 && request_.read.true_vocab_size == 0)
      job_.model->mean_only(static_cast<AxisId>(vocab), *model_.facts.recorded_vocab);
    bool const made = source_.state.torch_optimizer && states;
    if (!made && source_.names == NameOwner::family && states)
      fail(ErrorKind::source,
           "{}: holds optimizer state and no settings of an optimizer, which a run needs. "
           "Set source.optimizer = \"drop\" to continue without it.",
           source_.place);
    if (made) check_trained(source_, request_, model_, job_.warnings);
    if (source_.names == NameOwner::megatron || states)
      record_ = source_.format->run_record(source_);
    if (record_ && !request_.read.drop_optimizer)
      source_.format->add_optimizer_settings(source_, *record_);
    if (made && record_ && record_->samples == 0 && !target_.target().needs_masters)
      job_.warnings.push_back(
          "how many samples were seen in training is not known: Megatron starts with the first "
          "(consumed_train_samples = 0)");
    if (record_) settle_foreign_classes(*record_, request_.read.foreign_classes, job_.warnings);
    complete_request();
    settle_program(source_, request_);
    model_.names.target_names = target_names(model_, *job_.model, request_);
    if (to_megatron()) carry_config();
    if (source_.others.averaged.empty()) tensors_read();
    job_.target.tensors.resize(job_.model->tensors().size());
    target_.lay_out(
        {source_, request_, *job_.model, model_, dtypes_, record_ ? &*record_ : nullptr}, job_);
    if (request_.target.cast) state_dtype(*request_.target.cast, job_);
    add_run_config(source_, request_, model_, record_, job_);
    restate_vocabulary(request_.read.true_vocab_size, job_);
    job_.target.shrink();
    if (adapter) check_adapter_places(*job_.model, model_.names.maps.core, job_.target);
    if (adapter || !job_.model->schemes().empty())
      job_.copies.same_as = share_matrices(*job_.model, job_.source, job_.target);
    if (!adapter) check_reference_names();
    check_stated_args();
    note_casts();
    change_values(*job_.model, job_.source, job_.target, {model_.stored.adds, job_.target_adds},
                  cast_);
    average_weights(source_, request_, job_);
    if (!source_.others.averaged.empty()) tensors_read();
    quantise(job_, request_, source_);
    job_.plan = make_plan(*job_.model, job_.source, job_.target, limits_, job_.opaque);
    count_behind_views(job_.plan, job_.source);
    return std::move(job_);
  }

 private:
  /// Tensors that a reference of another family expects are no damage of the source.
  void read_source() {
    auto const read = [this](PlanRequest const& request) {
      return read_described(source_, request, carries_state(source_, request));
    };
    auto const failed = capture([&] { model_ = read(request_); });
    if (!failed) return;
    if (request_.options.huggingface.reference.empty() || failed->kind() != ErrorKind::source)
      throw *failed;
    PlanRequest alone = request_;
    alone.options.huggingface.reference.clear();
    SourceModel own;
    if (capture([&] { own = read(alone); }) || !own.names.maps.family) throw *failed;
    huggingface::Folder const reference = described_by(request_.options.huggingface.reference);
    Json const type = fact(reference.config, "model_type");
    if (type.text() == nullptr ||
        std::ranges::count(own.names.maps.family->model_types, *type.text()))
      throw *failed;
    fail(
        ErrorKind::usage,
        "[target] reference: {} has the model_type '{}', and the source is a model of {}. Name the "
        "folder of this model, or leave the key out.",
        config_name_of(reference), *type.text(), own.names.maps.family->name);
  }

  static std::vector<std::optional<DType>> dtypes_of(Catalog const& catalog) {
    std::vector<std::optional<DType>> result;
    for (TensorPieces const& tensor : catalog.tensors)
      result.push_back(tensor.empty() ? std::nullopt
                                      : std::optional<DType>(catalog.blobs[tensor.blob(0)].dtype));
    return result;
  }

  Index count(char const* word) const {
    Json const value = job_.model->value(word);
    return value.integer() == nullptr ? 0 : *value.integer();
  }

  void check_adapter_target() const {
    bool const fsdp = request_.target.format == FormatId::fsdp_dtensor;
    if (!fsdp && (to_megatron() || target_.target().names == NameOwner::family)) return;
    fail(ErrorKind::usage,
         "[target] format = \"{}\": a LoRA adapter goes between huggingface (a folder of peft), "
         "megatron and torch_dist. Choose one of these.",
         target_.name());
  }

  bool to_megatron() const { return target_.target().names == NameOwner::megatron; }

  /// Under the key of the job that cannot stay: the number of stages, or of chunks where a size of
  /// these fits.
  static void check_pipeline(PipelineSpec const& spec) {
    auto const failed = capture([&] { pipeline_chunks(spec); });
    if (!failed) return;
    PipelineSpec one_chunk = spec;
    one_chunk.chunks_per_rank = 1;
    bool const chunks = spec.chunks_per_rank > 1 && !capture([&] { pipeline_chunks(one_chunk); });
    if (!spec.layout.empty()) throw failed->in("[target] layout.pipeline");
    throw failed->in(fmt::format("[target] layout.{} = {}", chunks ? "vpp" : "pp",
                                 chunks ? spec.chunks_per_rank : spec.ranks));
  }

  void complete_request() {
    request_.target.pipeline.decoder_layers = static_cast<int>(count("L"));
    request_.target.pipeline.mtp_layers = static_cast<int>(count("M"));
    check_pipeline(request_.target.pipeline);
    std::string const of_experts = mesh_axis_of(model_.names.maps.core, "expert");
    if (request_.target.mesh.size(of_experts) > 1 && !has_experts())
      fail(ErrorKind::usage,
           "[target] layout.{} = {}: the {} has 0 experts, so nothing can be cut along this axis. "
           "Set layout.{} = 1.",
           of_experts, request_.target.mesh.size(of_experts),
           job_.model->adapter_ranks().empty() ? "model" : "adapter", of_experts);
  }

  /// Where the source has no args, args state what they can; all of config.json is copied
  /// along.
  void carry_config() {
    add_carried(job_, model_.facts.files);
    if (!model_.facts.args.is_null() || !model_.names.maps.family || model_.facts.config.is_null())
      return;
    if (to_megatron())
      refuse_special_numbers(
          *model_.names.maps.family,
          args_from_config(*model_.names.maps.family, model_.names.maps.core, model_.facts.config));
    std::string const lost = unheld_warning(*model_.names.maps.family, model_.names.maps.core,
                                            model_.facts.config, job_.reference.has_value());
    if (!lost.empty()) job_.warnings.push_back(lost);
  }

  /// Whether any layer has routed experts: a config can count experts that no layer uses.
  bool has_experts() const {
    int const expert = job_.model->axes().find("expert");
    for (std::size_t t = 0; t < job_.model->tensors().size(); ++t) {
      // The B of a router has a row for each expert, and is no expert's.
      auto const matrix = adapter_of(*job_.model, TensorId(t));
      if (matrix && matrix->matrix == AdapterMatrix::b) continue;
      for (LogicalAxis const& axis : job_.model->tensors()[t].axes)
        if (static_cast<int>(axis.axis) == expert && job_.model->exists(TensorId(t))) return true;
    }
    return false;
  }

  /// A reference of another family requires its own names.
  void check_reference_names() const {
    if (request_.options.huggingface.reference.empty() ||
        target_.target().names != NameOwner::family)
      return;
    Json const type = fact(model_.facts.reference->config, "model_type");
    auto const& known = model_.names.maps.family->model_types;
    if (type.text() == nullptr ||
        std::find(known.begin(), known.end(), *type.text()) != known.end())
      return;
    std::set<std::string, std::less<>> names;
    for (Blob const& blob : job_.target.blobs) names.insert(blob.name);
    auto const expected =
        expected_names(model_.facts.reference->config, names, request_.read.library);
    if (expected && !expected->lacking.empty())
      fail(ErrorKind::source, "target.reference: {}. Give the folder of this model.",
           lacking_sentence(*expected, names, config_name_of(*model_.facts.reference)));
  }

  /// Applies target.dtype to the logical tensors.
  void settle_dtypes() {
    request_.target.cast = job_.dtypes.cast = asked_dtype(request_, source_, model_);
    if (!request_.target.cast) return;
    for (std::string* const text :
         {model_.facts.reference ? &model_.facts.reference->config_text : nullptr,
          model_.facts.files ? &model_.facts.files->config_text : nullptr,
          &model_.facts.config_text})
      if (text != nullptr)
        *text =
            huggingface::config_with_dtype(std::move(*text), *request_.target.cast, source_.place);
    cast_ = cast_weights(model_, *job_.model, job_.source, *request_.target.cast, dtypes_);
    if (job_.model->slots().size() > 1 && to_megatron() && std::ranges::count(cast_, true) > 0)
      fail(ErrorKind::usage,
           "[target] dtype: weights of another dtype have other optimizer state in {}, which is "
           "never cast. Set source.optimizer = \"drop\", or remove the key.",
           target_.name());
  }

  /// Weights whose dtype becomes the one that a map states, or the job.
  void note_casts() {
    std::vector<std::string> notes;
    job_.dtypes.changes =
        dtype_changes(*job_.model, job_.source, job_.target, cast_, job_.dtypes.cast, notes);
    job_.warnings.insert(job_.warnings.end(), notes.begin(), notes.end());
  }

  /// Args that a family's map is behind must say what the target holds: a later job, and
  /// Megatron, has nothing else.
  void check_stated_args() {
    if (!plain_ || !job_.stated) return;
    auto const& [args, options] = *job_.stated;
    check_made_args(*plain_, model_.names.maps.core, model_.names.maps.family->name, args, options,
                    job_.warnings);
    if (model_.is_megatron()) return;  // its own Megatron has such layers
    std::string note = strict_load_note(*plain_, model_.names.maps.core, args, options);
    if (!note.empty()) job_.warnings.push_back(std::move(note));
  }

  Checkpoint const& source_;
  PlanRequest request_;
  Format const& target_;
  PlanLimits limits_;
  JobPlan job_;
  SourceModel model_;
  std::vector<std::optional<DType>> dtypes_;
  std::vector<bool> cast_;  ///< by logical tensor: target.dtype gives it another dtype
  std::optional<RunRecord> record_;
  std::optional<Model> plain_;  ///< the model with every weight as it is, where a family's map
                                ///< describes a Megatron target
};

}  // namespace

JobPlan make_job_plan(Checkpoint const& source, PlanRequest const& request,
                      PlanLimits const& limits, std::function<void()> const& tensors_read) {
  check_quantisable(source, request);
  bool const named = keeps_names(source, request);
  check_wrapped(source, request, named);
  if (named && source.others.adapter && !source.adapter_inside())
    fail(
        ErrorKind::usage,
        "[model] adapter = \"merge\": names are kept in this job, so it is not known which weights "
        "the adapter belongs to. Choose a target that a map describes, such as target.format = "
        "\"huggingface\"{}.",
        source.names == NameOwner::family ? ", and name the model's config.json with source.config"
                                          : "");
  if (auto const found = found_prefix(source, request, named, PrefixUse::job)) {
    JobPlan plan = make_job_plan(source, behind_prefix(*found, request), limits, tensors_read);
    plan.warnings.insert(plan.warnings.begin(), found->note);
    return plan;
  }
  if (named) return make_identity_plan(source, request, limits, tensors_read);
  refuse_tensor_objects(source);
  JobPlan plan;
  auto const failed =
      capture([&] { plan = JobPlanner(source, request, limits).run(tensors_read); });
  if (!failed) return plan;
  if (!failed->is_of_unknown_form() || !may_keep_names(source, request) ||
      format_of(request.target.format).target().names == NameOwner::megatron)
    throw *failed;
  PlanRequest as_stored = request;
  as_stored.read.map = "none";
  if (capture([&] { plan = make_identity_plan(source, as_stored, limits, tensors_read); }))
    throw *failed;
  plan.warnings.insert(plan.warnings.begin(), carried_note(*failed));
  return plan;
}

}  // namespace reshard
