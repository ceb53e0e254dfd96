#include "pipeline/job/target_fields.hpp"

#include <utility>

#include "pipeline/job/field_kinds.hpp"
#include "pipeline/job/format_field.hpp"

namespace reshard::job {
namespace {

constexpr std::int64_t most_elements = std::int64_t{1} << 40;

/// The size of a parallel axis. One that no layout has by default is named only where it cuts.
Field axis_size(std::string const& axis, std::int64_t least, std::string_view comment) {
  Field field = number(
      "target", "layout." + axis, least, most_ranks, comment,
      [axis](JobSpec const& spec) { return std::int64_t{spec.target.layout.size(axis)}; },
      [axis](JobSpec& spec, std::int64_t size) {
        if (size == 1 && !JobSpec::Layout().sizes.contains(axis))
          spec.target.layout.sizes.erase(axis);
        else
          spec.target.layout.sizes[axis] = static_cast<int>(size);
      });
  field.axis = axis;
  return field;
}

void add_target(std::vector<Field>& out) {
  out.push_back(with_example(
      text(
          "target", "path", [](JobSpec& job) -> std::string& { return job.target.path; },
          "The checkpoint to make. It appears under this name only when it is complete."),
      "\"/path/to/target\""));
  out.push_back(with_example(target_format(), "\"megatron\""));
  out.push_back(flag(
      "target", "replace", [](JobSpec& job) -> bool& { return job.target.replace; },
      "An existing target is refused; true replaces it in one step at the end."));
  out.push_back(choice<ReflinkChoice>(
      "target", "reflink", [](JobSpec& job) -> ReflinkChoice& { return job.target.reflink; },
      {"auto", "always", "never"},
      "\"auto\": on a file system that can share extents (XFS, Btrfs), large tensors begin at "
      "whole blocks, and blocks that are equal in the source are cloned instead of written. "
      "\"always\": files have this layout on any file system, also in Hugging Face folders, "
      "whose files are otherwise those of the safetensors library. \"never\": no clones, no "
      "such layout."));
  out.push_back(choice<SumsChoice>(
      "target", "sha256sums", [](JobSpec& job) -> SumsChoice& { return job.target.sha256sums; },
      {"auto", "always", "never"},
      "\"auto\": a SHA256SUMS for sha256sum -c is written where all files are read back "
      "(run.verify = \"written\"); \"always\" also reads back what is shared with the source."));
  out.push_back(text(
      "target", "since", [](JobSpec& job) -> std::string& { return job.target.since; },
      "A previous target of the same format and layout: its unchanged bytes are taken over, "
      "neither written nor read back. \"none\": there is no previous\ntarget yet, but record "
      "what the next run needs. \"\": do neither."));
  out.push_back(flag(
      "target", "since_links", [](JobSpec& job) -> bool& { return job.target.since_links; },
      "With target.since, on a file system that cannot share extents: files that are unchanged "
      "become hard links. A change of such a file\nin place changes both targets."));
}

void add_huggingface_and_hdf5(std::vector<Field>& out) {
  auto const scope = only_for(FormatId::huggingface);
  out.push_back(with_scope(
      scope | only_for(FormatId::dcp),
      text(
          "target", "reference", [](JobSpec& job) -> std::string& { return job.target.reference; },
          "Hugging Face, and DCP with target.map: a folder of the same model; its config and tokenizer files go into the target.")));
  out.push_back(with_scope(
      scope,
      size(
          "target", "shard_bytes",
          [](JobSpec& job) -> std::uint64_t& { return job.target.shard_bytes; },
          "Hugging Face only: the maximum size of a safetensors file. A larger tensor gets its "
          "own file. Files of a source or reference with the same tensors stay as they are.")));
  out.push_back(size(
      "target", "part_bytes", [](JobSpec& job) -> std::uint64_t& { return job.target.part_bytes; },
      "HDF5 only: the maximum size of a file. A larger tensor gets its own file."));
  out.push_back(choice<TargetIo>(
      "target", "io", [](JobSpec& job) -> TargetIo& { return job.target.io; },
      {"auto", "direct", "independent", "collective"},
      "HDF5 only: \"direct\" (also \"auto\"), or through MPI-IO, \"independent\" or \"collective\". The files are the same."));
  for (std::size_t i = out.size() - 2; i < out.size(); ++i) out[i].scope = only_for(FormatId::hdf5);
}

void add_dcp(std::vector<Field>& out) {
  auto const scope = only_for(FormatId::dcp);
  out.push_back(with_scope(
      scope, choice<ChunkChoice>(
                 "target", "chunks", [](JobSpec& job) -> ChunkChoice& { return job.target.chunks; },
                 {"source", "whole", "ranks", "mesh"},
                 "DCP only: how tensors are split into chunks. \"source\": as in the source; "
                 "\"whole\": not at all; \"ranks\": rows over N ranks; \"mesh\": by placements.")));
  out.push_back(with_scope(
      scope, number<std::int64_t>(
                 "target", "ranks", [](JobSpec& job) -> std::int64_t& { return job.target.ranks; },
                 1, most_ranks, "With chunks = \"ranks\": the number of ranks.")));
  out.push_back(with_scope(
      scope, text(
                 "target", "mesh", [](JobSpec& job) -> std::string& { return job.target.mesh; },
                 "With chunks = \"mesh\": the axes of the device mesh, such as \"dp=4 tp=2\".")));
  out.push_back(with_scope(
      scope,
      text(
          "target", "placements",
          [](JobSpec& job) -> std::string& { return job.target.placements; },
          "With chunks = \"mesh\": for patterns of keys, one placement per mesh axis; the first "
          "matching pattern is used:\n"
          "\"hc_head.*: R R; *.experts.*: S0 S0; *: S0 R\". R replicates, S0 shards dimension 0, "
          "_S(0, 2) is strided.")));
  out.push_back(with_scope(
      scope, text(
                 "target", "prefix", [](JobSpec& job) -> std::string& { return job.target.prefix; },
                 "DCP only: a prefix added to every key, such as \"model.\".")));
  out.push_back(with_scope(
      scope,
      text(
          "target", "map", [](JobSpec& job) -> std::string& { return job.target.map; },
          "DCP only: the map whose names the tensors get, such as \"torchtitan_qwen3\"; \"\" "
          "keeps those of the source.")));
}

constexpr FieldScope dist_formats =
    only_for(FormatId::torch_dist) | only_for(FormatId::fsdp_dtensor);

void add_dist(std::vector<Field>& out) {
  out.push_back(choice<AdapterForm>(
      "target", "adapter", [](JobSpec& job) -> AdapterForm& { return job.target.adapter; },
      {"auto", "canonical", "fused", "mcore-bridge"},
      "LoRA adapters in Megatron's formats. Megatron-Bridge's names: \"canonical\", one A each "
      "for q, k, v, gate and up, or \"fused\", one A for q, k and v and one\nfor gate and up; "
      "or the names of mcore-bridge and ms-swift. \"auto\": as in the source, else canonical."));
  auto const dist = only_for(FormatId::torch_dist);
  out.push_back(with_scope(
      dist,
      choice<LayerChoice>(
          "target", "layers", [](JobSpec& job) -> LayerChoice& { return job.target.layers; },
          {"auto", "stacked", "separate"},
          "torch_dist only: one key for all layers, \"stacked\", or one for each, \"separate\"; "
          "\"auto\" keeps the source's form,\n"
          "else stacks if all layers are alike.")));
  out.push_back(with_scope(
      dist,
      choice<IntegrityChoice>(
          "target", "integrity",
          [](JobSpec& job) -> IntegrityChoice& { return job.target.integrity; },
          {"auto", "always", "never"},
          "torch_dist only: write the integrity.json that Megatron's --verify-integrity needs; "
          "\"auto\": if the source has one.")));
  out.push_back(with_scope(
      dist_formats, size(
                        "target", "chunk_bytes",
                        [](JobSpec& job) -> std::uint64_t& { return job.target.chunk_bytes; },
                        "torch_dist and fsdp_dtensor: the chunk size to aim for.")));
}

void add_megatron(std::vector<Field>& out) {
  auto const scope = only_for(FormatId::megatron);
  auto const named = scope | dist_formats;
  out.push_back(with_scope(
      named, text(
                 "target", "names", [](JobSpec& job) -> std::string& { return job.target.names; },
                 "Megatron formats: the names of a vision part. Those of a trainer that the "
                 "family's map knows (\"bridge\", \"swift\", …), or\n\"huggingface\": its own "
                 "names, beside a language model without a prefix. \"auto\": the source's "
                 "names, else those of the\nmap's first trainer.")));
  out.push_back(with_scope(
      named,
      choice<TransformerImpl>(
          "target", "transformer_impl",
          [](JobSpec& job) -> TransformerImpl& { return job.target.transformer_impl; },
          {"auto", "transformer_engine", "local"},
          "Megatron formats: the naming scheme, \"transformer_engine\" or \"local\"; \"auto\" "
          "keeps the source's.")));
  out.push_back(with_scope(
      named,
      choice<ExpertStorage>(
          "target", "experts", [](JobSpec& job) -> ExpertStorage& { return job.target.experts; },
          {"auto", "grouped", "sequential"},
          "Megatron formats: experts stored \"grouped\" or \"sequential\"; \"auto\" keeps the source's form.")));
  out.push_back(with_scope(
      named,
      choice<ModelClass>(
          "target", "model", [](JobSpec& job) -> ModelClass& { return job.target.model; },
          {"auto", "gpt", "hybrid"},
          "Megatron formats: the class that loads it. In a \"hybrid\" model attention and MLP "
          "are separate layers,\nin a \"gpt\" model one layer; \"auto\" keeps the source's.")));
  out.push_back(with_scope(
      named,
      choice<MegatronRelease>(
          "target", "megatron",
          [](JobSpec& job) -> MegatronRelease& { return job.target.megatron; },
          {"auto", "0.16", "0.17", "0.18", "0.19"},
          "Megatron formats: the release of Megatron-Core that loads it, where names, args and "
          "optimizers depend on it;\n\"auto\": that of the source, else the newest of these.")));
  out.push_back(with_scope(
      only_for(FormatId::torch_dist),
      choice<TrainerChoice>(
          "target", "program", [](JobSpec& job) -> TrainerChoice& { return job.target.program; },
          {"auto", "megatron-lm", "megatron-bridge", "ms-swift"},
          "torch_dist only: the program that starts from it. \"megatron-bridge\" needs a "
          "run_config.yaml, which is written for families\nthat it has; \"megatron-lm\" needs "
          "args; \"ms-swift\" has names of its own for some families; \"auto\": as the source, "
          "else\nMegatron-LM.")));
  out.push_back(with_scope(
      scope,
      choice<MpRankStyle>(
          "target", "mp_rank_style",
          [](JobSpec& job) -> MpRankStyle& { return job.target.mp_rank_style; },
          {"megatron", "full3d"},
          "Megatron only: \"megatron\" leaves out the number of an unused axis, \"full3d\" always "
          "writes mp_rank_TT_PPP_EEE.")));
  out.push_back(with_scope(
      scope, choice<OptimizerChoice>(
                 "target", "optimizer",
                 [](JobSpec& job) -> OptimizerChoice& { return job.target.optimizer; },
                 {"auto", "inline", "distributed"},
                 "Megatron only: optimizer state goes into model_optim_rng.pt, \"inline\", or into "
                 "the distrib_optim.pt of the\n"
                 "distributed optimizer, \"distributed\"; \"auto\" keeps the source's form.")));
  out.push_back(
      with_scope(scope, choice<Switch>(
                            "target", "overlap_grad_reduce",
                            [](JobSpec& job) -> Switch& { return job.target.overlap_grad_reduce; },
                            {"auto", "on", "off"},
                            "Megatron only, for distrib_optim.pt: whether training starts with "
                            "--overlap-grad-reduce; \"auto\": as the source's args say.")));
  out.push_back(with_scope(
      scope,
      number<std::int64_t>(
          "target", "bucket_size",
          [](JobSpec& job) -> std::int64_t& { return job.target.bucket_size; }, 0, most_elements,
          "Megatron only, for distrib_optim.pt: --ddp-bucket-size; 0 means: as the source's args "
          "say.")));
  out.push_back(with_scope(
      scope, number<std::int64_t>(
                 "target", "data_parallel_size",
                 [](JobSpec& job) -> std::int64_t& { return job.target.data_parallel_size; }, 0,
                 most_ranks,
                 "Megatron only, for distrib_optim.pt without a bucket size: data-parallel ranks; "
                 "0 means: as the source's args say.")));
}

void add_layout(std::vector<Field>& out) {
  constexpr FieldScope scope =
      only_for(FormatId::megatron) | only_for(FormatId::dcp) | dist_formats;
  auto const add = [&out](Field field) { out.push_back(with_scope(scope, std::move(field))); };
  add(axis_size("tp", 1, "Tensor parallel size."));
  add(axis_size("pp", 1, "Pipeline parallel size."));
  add(axis_size("vpp", 1, "Model chunks per pipeline rank."));
  add(axis_size("ep", 1, "Expert parallel size."));
  add(axis_size("etp", 0, "Expert tensor parallel size; 0 means: equal to tp, in DCP 1."));
  add(number<int>(
      "target", "layout.first_stage_layers",
      [](JobSpec& job) -> int& { return job.target.layout.first_stage_layers; }, -1, most_ranks,
      "Decoder layers of the first pipeline rank; -1 means: an equal share."));
  add(number<int>(
      "target", "layout.last_stage_layers",
      [](JobSpec& job) -> int& { return job.target.layout.last_stage_layers; }, -1, most_ranks,
      "Decoder layers of the last pipeline rank; -1 means: an equal share."));
  add(text(
      "target", "layout.pipeline",
      [](JobSpec& job) -> std::string& { return job.target.layout.pipeline; },
      "The layers of each stage, such as \"Ettt|(tt|)*29,m|L\"; \"\" means: equal shares."));
}

}  // namespace

void add_target_fields(std::vector<Field>& out) {
  add_target(out);
  add_huggingface_and_hdf5(out);
  add_dcp(out);
  add_dist(out);
  add_megatron(out);
  add_layout(out);
}

Field further_axis(std::string const& axis) {
  return with_scope(dist_formats, axis_size(axis, 1, "The size of a further parallel axis."));
}

}  // namespace reshard::job
