#include "pipeline/job/plan_request.hpp"

#include "core/base/text/text.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "pipeline/version.hpp"

namespace reshard {
namespace {

std::map<std::string, int, std::less<>> with_etp(std::map<std::string, int, std::less<>> sizes,
                                                 int etp) {
  sizes["etp"] = etp;
  return sizes;
}

}  // namespace

std::vector<std::string> frozen_patterns(JobSpec const& job) {
  return parts_between(';', job.model.frozen);
}

OpenChoice open_choice(JobSpec const& job) {
  OpenChoice choice;
  choice.rank_states = job.source.optimizer != StatePolicy::drop &&
                       format_of(job.target.format).target().rank_states;
  choice.compare_files = job.source.verify != SourceVerify::off;
  choice.by_headers = job.source.index == IndexChoice::rebuild;
  choice.torchao_objects = job.target.format == FormatId::dcp && job.source.average.empty() &&
                           job.target.dtype == TargetDType::keep;
  choice.prefix = job.source.prefix;
  return choice;
}

WrappedChoice wrapped_choice(JobSpec const& job) {
  return {.use = job.model.adapter,
          .prefix = job.source.prefix,
          .config = job.source.adapter,
          .lora_alpha = job.model.lora_alpha,
          .drop_optimizer = job.source.optimizer == StatePolicy::drop};
}

PlanRequest plan_request(JobSpec const& job, MapLibrary const& library) {
  Format const& format = format_of(job.target.format);
  auto const& layout = job.target.layout;
  (void)dcp::grid_of(job.target.options.dcp);  // refuses what cannot be read
  PlanRequest request;
  request.read = {.library = library,
                  .map = job.model.map,
                  .prefix = job.source.prefix,
                  .config = job.source.config,
                  .base_config = {},
                  .tp = job.source.tp,
                  .etp = job.source.etp,
                  .true_vocab_size = job.model.true_vocab_size,
                  .unmapped = job.model.unmapped,
                  .lora_alpha = job.model.lora_alpha,
                  .frozen = frozen_patterns(job),
                  .foreign_classes = job.model.foreign_classes,
                  .objects_unread = job.source.objects == SourceObjects::unread,
                  .dequantise = job.model.quant == QuantChoice::dequantise_bf16,
                  .drop_optimizer = job.source.optimizer == StatePolicy::drop,
                  .drop_rng = job.source.rng == StatePolicy::drop,
                  .true_rows = format.target().names == NameOwner::logical};
  request.target = {
      .format = format.id(),
      .pipeline = {.ranks = layout.size("pp"),
                   .chunks_per_rank = layout.size("vpp"),
                   .first_stage_layers = layout.first_stage_layers,
                   .last_stage_layers = layout.last_stage_layers,
                   .layout = layout.pipeline},
      .mesh = megatron::mesh_of(format.id() == FormatId::dcp && layout.size("etp") == 0
                                    ? with_etp(layout.sizes, 1)
                                    : layout.sizes),
      .folder = std::filesystem::absolute(job.target.path).lexically_normal(),
      .dtype = job.target.dtype,
      .cast = {},
      .tool_version = version_number()};
  request.options = job.target.options;
  request.changes = job.target.changes;
  return request;
}

PlanRequest request_without_target(std::string const& map, std::filesystem::path const& config,
                                   MapLibrary const& library) {
  PlanRequest request;
  request.read.map = map;
  request.read.library = library;
  request.read.config = config;
  request.read.unmapped = Unmapped::keep;
  request.options.named.names = "huggingface";  // as no trainer lacks a place for anything
  return request;
}

}  // namespace reshard
