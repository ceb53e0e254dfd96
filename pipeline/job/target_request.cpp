#include "pipeline/job/target_request.hpp"

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/formats/megatron/mesh.hpp"
#include "pipeline/version.hpp"

namespace reshard {
namespace {

ChunkGrid chunk_grid(JobSpec::Target const& target) {
  ChunkGrid grid;
  switch (target.chunks) {
    case ChunkChoice::source: grid.kind = ChunkGrid::Kind::source; break;
    case ChunkChoice::whole: grid.kind = ChunkGrid::Kind::whole; break;
    case ChunkChoice::ranks: grid.kind = ChunkGrid::Kind::ranks; break;
    case ChunkChoice::mesh: grid.kind = ChunkGrid::Kind::mesh; break;
  }
  grid.ranks = target.ranks;
  if (grid.kind != ChunkGrid::Kind::mesh) return grid;
  try {
    grid.mesh = parse_mesh(target.mesh);
  } catch (Error const& error) {
    throw Error(ErrorKind::usage,
                fmt::format("[target] mesh = \"{}\": {}", target.mesh, error.sentence()));
  }
  grid.rules = parse_placement_rules(target.placements);
  return grid;
}

}  // namespace

TargetRequest target_request(JobSpec const& job,
                             std::vector<std::filesystem::path> const& map_folders) {
  TargetRequest request;
  auto const& layout = job.target.layout;
  using Format = TargetRequest::Format;
  switch (job.target.format) {
    case CheckpointFormat::automatic:
    case CheckpointFormat::megatron: request.format = Format::megatron; break;
    case CheckpointFormat::huggingface: request.format = Format::huggingface; break;
    case CheckpointFormat::dcp: request.format = Format::dcp; break;
    case CheckpointFormat::torch_dist: request.format = Format::torch_dist; break;
    case CheckpointFormat::fsdp_dtensor: request.format = Format::fsdp_dtensor; break;
    case CheckpointFormat::hdf5: request.format = Format::hdf5; break;
  }
  request.grid = chunk_grid(job.target);
  request.chunk_bytes = job.target.chunk_bytes;
  request.layers = static_cast<LayerKeys>(job.target.layers);
  request.source_prefix = job.source.prefix;
  request.target_prefix = job.target.prefix;
  request.source_config = job.source.config;
  request.source_etp = job.source.etp;
  request.mesh = megatron::mesh_of(layout.sizes);
  request.pipeline.ranks = layout.size("pp");
  request.pipeline.chunks_per_rank = layout.size("vpp");
  request.pipeline.first_stage_layers = layout.first_stage_layers;
  request.pipeline.last_stage_layers = layout.last_stage_layers;
  request.pipeline.layout = layout.pipeline;
  if (job.target.transformer_impl != TransformerImpl::automatic)
    request.spec = job.target.transformer_impl == TransformerImpl::local ? "local" : "te";
  if (job.target.experts != ExpertStorage::automatic)
    request.form = job.target.experts == ExpertStorage::grouped ? "grouped" : "sequential";
  request.style = job.target.mp_rank_style == MpRankStyle::full3d ? megatron::NameStyle::full3d
                                                                  : megatron::NameStyle::megatron;
  request.reference = job.target.reference;
  request.shard_bytes =
      request.format == Format::hdf5 ? job.target.part_bytes : job.target.shard_bytes;
  request.map = job.model.map;
  request.true_vocab_size = job.model.true_vocab_size;
  request.unmapped = static_cast<Unmapped>(job.model.unmapped);
  request.foreign_classes = static_cast<ForeignClasses>(job.model.foreign_classes);
  request.objects_unread = job.source.objects == SourceObjects::unread;
  request.dequantise = job.model.quant == QuantChoice::dequantise_bf16;
  request.drop_optimizer = job.source.optimizer == StatePolicy::drop;
  request.drop_rng = job.source.rng == StatePolicy::drop;
  request.map_folders = map_folders;
  request.tool_version = version_number();
  request.true_rows = request.format == Format::hdf5;
  return request;
}

TargetRequest request_without_target(std::string const& map, std::filesystem::path const& config,
                                     std::vector<std::filesystem::path> const& map_folders) {
  TargetRequest request;
  request.map = map;
  request.map_folders = map_folders;
  request.source_config = config;
  request.unmapped = Unmapped::keep;
  return request;
}

SourceFormat source_format(CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::automatic: return SourceFormat::found;
    case CheckpointFormat::megatron: return SourceFormat::megatron;
    case CheckpointFormat::huggingface: return SourceFormat::huggingface;
    case CheckpointFormat::dcp:
    case CheckpointFormat::torch_dist:
    case CheckpointFormat::fsdp_dtensor: return SourceFormat::dcp;
    case CheckpointFormat::hdf5: return SourceFormat::hdf5;
  }
  return SourceFormat::found;
}

void check_source_format(JobSpec const& job, SourceCheckpoint& source) {
  CheckpointFormat const stated = job.source.format;
  if (stated == CheckpointFormat::dcp && source.dcp)
    source.dcp->flavour = dcp::Flavour::plain;  // names are just names
  if (stated != CheckpointFormat::torch_dist && stated != CheckpointFormat::fsdp_dtensor) return;
  if (name(stated) == format_of(source)) return;
  fail(
      ErrorKind::source,
      "{}: is a {} checkpoint by its files and keys, source.format says {}. Correct the key, or leave it out.",
      job.source.path, format_of(source), name(stated));
}

}  // namespace reshard
