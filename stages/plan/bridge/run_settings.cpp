#include "stages/plan/bridge/run_settings.hpp"

#include <algorithm>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/text/yaml.hpp"
#include "core/formats/format.hpp"
#include "stages/plan/bridge/run_config.hpp"

namespace reshard {
namespace {

/// The map whose layers a target has. Between Megatron's formats no job needs to know it; where
/// a config.json travels with the source, that says it.
std::string bridge_family(PlanRequest const& request, SourceModel const& read, JobPlan const& job) {
  std::string name = job.map_name;
  if (name.empty() && read.facts.files && !read.facts.files->config.is_null())
    capture([&] {
      name = request.read.library.choose("auto", read.facts.files->config, {}, true).family->name;
    });
  return std::filesystem::path(name).stem().string();
}

/// Whether the source has settings of Megatron-Bridge that describe its model.
bool has_run_config(Checkpoint const& source) {
  return source.shares.shape && source.format->id() == FormatId::torch_dist &&
         source.shares.shape->settings.ends_with(run_config_name) &&
         !source.shares.shape->facts.is_null();
}

}  // namespace

void settle_program(Checkpoint const& source, PlanRequest& request) {
  if (request.target.format != FormatId::torch_dist) return;
  bool const hybrid = request.options.named.model == megatron::TargetModel::hybrid;
  if (request.options.named.program == megatron::TargetProgram::as_source &&
      has_run_config(source) &&
      (request.options.named.transformer_impl == "local" ||
       request.options.named.model != megatron::TargetModel::as_source))
    request.options.named.program = megatron::TargetProgram::megatron_lm;
  bool const swift = request.options.named.program == megatron::TargetProgram::ms_swift;
  if (request.options.named.program != megatron::TargetProgram::megatron_bridge && !swift) return;
  if (request.options.named.transformer_impl == "local" || hybrid)
    fail(
        ErrorKind::usage,
        "[target] program = \"{}\" and {}: it does not build such a model. Remove one of the keys.",
        swift ? "ms-swift" : "megatron-bridge",
        hybrid ? "model = \"hybrid\"" : "transformer_impl = \"local\"");
  request.options.named.transformer_impl = "te";
}

void add_run_config(Checkpoint const& source, PlanRequest const& request, SourceModel const& read,
                    std::optional<RunRecord> const& record, JobPlan& job) {
  bool const asked = request.options.named.program == megatron::TargetProgram::megatron_bridge;
  bool const kept =
      has_run_config(source) && request.options.named.model == megatron::TargetModel::as_source;
  if (request.target.format != FormatId::torch_dist || !job.stated ||
      !(asked || (kept && request.options.named.program == megatron::TargetProgram::as_source)))
    return;
  BridgeTarget target{.args = job.stated->args,
                      .family = {},
                      .own_args = read.names.maps.core.own_args,
                      .config = job.configs.model,
                      .folder = request.target.folder};
  target.layers_apart = std::ranges::any_of(job.target.blobs, [](Blob const& blob) {
    return blob.name.find("decoder.layers.0.") != std::string::npos;
  });
  std::string text;
  if (kept) {
    text = revised_run_config(read_text_file(source.shares.shape->settings, largest_yaml_bytes),
                              target.args, target.layers_apart, request.target.cast.has_value());
  } else if (!job.model->adapter_ranks().empty()) {
    fail(ErrorKind::usage,
         "[target] program = \"megatron-bridge\": settings for a LoRA adapter cannot be made. "
         "Leave the key out: Megatron-Bridge takes the adapter's settings from its own job.");
  } else {
    if (job.reference && !job.reference->config.is_null())
      target.hf_folder = request.target.folder / job.reference_to;
    target.has_optimizer = job.model->slots().size() > 1;
    target.has_random_state =
        source.format->id() == FormatId::torch_dist && !request.read.drop_rng &&
        std::ranges::any_of(source.stored.objects, [](StoredObject const& object) {
          return object.name.starts_with("rng_state");
        });
    target.has_parts = !read.names.target_trainer.root.empty();
    target.family = bridge_family(request, read, job);
    text = run_config_text(target, request.read.library);
  }
  std::filesystem::path const folder = run_folder(record ? &*record : nullptr, asked);
  job.texts.push_back({folder / run_config_name, std::move(text), false, {}});
}

}  // namespace reshard
