#include "pipeline/job/target_request.hpp"

#include <sstream>

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

std::map<std::string, int, std::less<>> with_etp(std::map<std::string, int, std::less<>> sizes,
                                                 int etp) {
  sizes["etp"] = etp;
  return sizes;
}

OptimizerRequest optimizer_request(JobSpec::Target const& target) {
  OptimizerRequest request;
  request.files = static_cast<OptimizerFiles>(target.optimizer);
  if (target.overlap_grad_reduce != Switch::automatic)
    request.overlap_grad_reduce = target.overlap_grad_reduce == Switch::on;
  request.bucket_elements = target.bucket_size;
  request.data_parallel = target.data_parallel_size;
  return request;
}

}  // namespace

std::vector<std::string> frozen_patterns(JobSpec const& job) {
  std::vector<std::string> patterns;
  std::istringstream parts{job.model.frozen};
  for (std::string part; std::getline(parts, part, ';');) {
    std::size_t const first = part.find_first_not_of(' ');
    if (first != std::string::npos)
      patterns.push_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
  }
  return patterns;
}

OpenChoice open_choice(JobSpec const& job) {
  OpenChoice choice;
  choice.rank_states = job.source.optimizer != StatePolicy::drop &&
                       format_of(job.target.format).target().rank_states;
  choice.compare_files = job.source.verify != SourceVerify::off;
  choice.prefix = job.source.prefix;
  return choice;
}

TargetRequest target_request(JobSpec const& job,
                             std::vector<std::filesystem::path> const& map_folders) {
  TargetRequest request;
  auto const& layout = job.target.layout;
  request.format = job.target.format;
  request.grid = chunk_grid(job.target);
  request.chunk_bytes = job.target.chunk_bytes;
  request.layers = static_cast<LayerKeys>(job.target.layers);
  request.optimizer = optimizer_request(job.target);
  if (job.target.adapter != AdapterForm::automatic) {
    bool const bridge = job.target.adapter != AdapterForm::mcore_bridge;
    request.adapter = bridge ? "bridge" : "mcore_bridge";
    request.adapters_apart = job.target.adapter == AdapterForm::canonical;
  }
  request.adapter_alpha = job.model.lora_alpha;
  request.source_prefix = job.source.prefix;
  request.target_prefix = job.target.prefix;
  request.target_map = job.target.map;
  request.source_config = job.source.config;
  request.source_tp = job.source.tp;
  request.source_etp = job.source.etp;
  request.mesh = megatron::mesh_of(request.format == FormatId::dcp && layout.size("etp") == 0
                                       ? with_etp(layout.sizes, 1)
                                       : layout.sizes);
  request.pipeline.ranks = layout.size("pp");
  request.pipeline.chunks_per_rank = layout.size("vpp");
  request.pipeline.first_stage_layers = layout.first_stage_layers;
  request.pipeline.last_stage_layers = layout.last_stage_layers;
  request.pipeline.layout = layout.pipeline;
  request.names = job.target.names;
  if (job.target.transformer_impl != TransformerImpl::automatic)
    request.spec = job.target.transformer_impl == TransformerImpl::local ? "local" : "te";
  if (job.target.experts != ExpertStorage::automatic)
    request.form = job.target.experts == ExpertStorage::grouped ? "grouped" : "sequential";
  request.model = static_cast<TargetModel>(job.target.model);
  if (job.target.megatron != MegatronRelease::automatic)
    request.release = 15 + static_cast<int>(job.target.megatron);
  request.program = static_cast<TargetProgram>(job.target.program);
  request.folder = std::filesystem::absolute(job.target.path).lexically_normal();
  request.style = job.target.mp_rank_style == MpRankStyle::full3d ? megatron::NameStyle::full3d
                                                                  : megatron::NameStyle::megatron;
  request.reference = job.target.reference;
  request.shard_bytes = job.target.shard_bytes;
  request.part_bytes = job.target.part_bytes;
  request.map = job.model.map;
  request.true_vocab_size = job.model.true_vocab_size;
  request.unmapped = static_cast<Unmapped>(job.model.unmapped);
  request.frozen = frozen_patterns(job);
  request.foreign_classes = static_cast<ForeignClasses>(job.model.foreign_classes);
  request.objects_unread = job.source.objects == SourceObjects::unread;
  request.dequantise = job.model.quant == QuantChoice::dequantise_bf16;
  request.drop_optimizer = job.source.optimizer == StatePolicy::drop;
  request.drop_rng = job.source.rng == StatePolicy::drop;
  request.map_folders = map_folders;
  request.tool_version = version_number();
  request.true_rows = format_of(request.format).target().names == NameOwner::logical;
  return request;
}

TargetRequest request_without_target(std::string const& map, std::filesystem::path const& config,
                                     std::vector<std::filesystem::path> const& map_folders) {
  TargetRequest request;
  request.map = map;
  request.map_folders = map_folders;
  request.source_config = config;
  request.unmapped = Unmapped::keep;
  request.names = "huggingface";  // as no trainer lacks a place for anything
  return request;
}

}  // namespace reshard
