#include "pipeline/job/job_field.hpp"

#include <algorithm>
#include <utility>

#include "core/io/io_engines.hpp"
#include "pipeline/job/field_kinds.hpp"
#include "pipeline/job/format_field.hpp"

namespace reshard::job {
namespace {

// Far above any cluster, far below where a product of two sizes leaves the range of an int.
constexpr std::int64_t most_ranks = 32768;
constexpr std::int64_t most_elements = std::int64_t{1} << 40;
constexpr std::int64_t most_stall_seconds = 24 * 3600;
constexpr std::int64_t most_threads = 256;
constexpr std::int64_t most_progress_seconds = 24 * 3600;

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

void add_source(std::vector<Field>& out) {
  std::vector<std::string> const policies = {"refuse", "drop"};
  out.push_back(with_example(
      text(
          "source", "path", [](JobSpec& job) -> std::string& { return job.source.path; },
          "The checkpoint to read: a Megatron or torch_dist root or iteration folder, a DCP or a "
          "Hugging Face folder. It is never changed.\n"
          "Relative paths start at the current directory, not at this file."),
      "\"/path/to/source\""));
  out.push_back(source_format());
  out.push_back(choice<StatePolicy>(
      "source", "optimizer", [](JobSpec& job) -> StatePolicy& { return job.source.optimizer; },
      policies,
      "Optimizer state: converted if both formats can hold it; if they cannot, \"refuse\" stops "
      "the job. \"drop\" leaves it out."));
  out.push_back(choice<StatePolicy>(
      "source", "rng", [](JobSpec& job) -> StatePolicy& { return job.source.rng; }, policies,
      "Random-number state of the source: the same choices."));
  out.push_back(text(
      "source", "prefix", [](JobSpec& job) -> std::string& { return job.source.prefix; },
      "DCP formats: only keys with this prefix are read, and the prefix is removed, such as "
      "\"model.\". Other keys are counted and named; in Megatron's formats they stop the job "
      "unless model.unmapped = \"drop\"."));
  out.push_back(text(
      "source", "config", [](JobSpec& job) -> std::string& { return job.source.config; },
      "The config.json of the source's model, or its folder. \"\": the one in the source."));
  out.push_back(text(
      "source", "adapter", [](JobSpec& job) -> std::string& { return job.source.adapter; },
      "With model.adapter = \"merge\": the folder of the adapter (LoRA) whose weights are merged "
      "into the source's."));
  out.push_back(choice<SourceVerify>(
      "source", "verify", [](JobSpec& job) -> SourceVerify& { return job.source.verify; },
      {"auto", "files", "off"},
      "\"auto\" compares what is read with the CRCs of .pt and .distcp files and with the source's reshard.json; \"files\" reads and\n"
      "compares every file first; or \"off\"."));
  out.push_back(choice<ReplicaChoice>(
      "source", "replicas", [](JobSpec& job) -> ReplicaChoice& { return job.source.replicas; },
      {"compare", "first"},
      "Norms, biases and other tensors below 1 MiB that several files hold, and tied layers that are stored twice: \"compare\" stops the job when "
      "they "
      "differ, \"first\" takes one."));
  out.push_back(choice<SourceObjects>(
      "source", "objects", [](JobSpec& job) -> SourceObjects& { return job.source.objects; },
      {"look", "unread"},
      "Pickled objects of DCP formats are copied byte for byte: \"look\" first reads each and "
      "applies model.foreign_classes; \"unread\" trusts them."));
  out.push_back(number<int>(
      "source", "tp", [](JobSpec& job) -> int& { return job.source.tp; }, 1, most_ranks,
      "Megatron Lite only: the tensor parallel size of its run, which its files do not record."));
  out.push_back(number<int>(
      "source", "etp", [](JobSpec& job) -> int& { return job.source.etp; }, 1, most_ranks,
      "Megatron Lite only: the expert tensor parallel size of its run, which its files do not "
      "record."));
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
          "own file.")));
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

std::vector<std::string> engine_names() {
  std::vector<std::string> names = {"auto"};
  for (IoEngine const& engine : io_engines()) names.emplace_back(engine.name);
  return names;
}

void add_model_and_run(std::vector<Field>& out) {
  out.push_back(text(
      "model", "map", [](JobSpec& job) -> std::string& { return job.model.map; },
      "The model map: a name of configs/models, the path of a map file, or \"auto\"."));
  out.push_back(number<std::int64_t>(
      "model", "true_vocab_size",
      [](JobSpec& job) -> std::int64_t& { return job.model.true_vocab_size; }, 0,
      std::numeric_limits<std::int64_t>::max(),
      "Vocabulary rows without padding; 0 means: as in the source."));
  out.push_back(choice<UnmappedChoice>(
      "model", "unmapped", [](JobSpec& job) -> UnmappedChoice& { return job.model.unmapped; },
      {"refuse", "keep", "drop"},
      "Stored tensors that the map lists under `keep`, such as a vision tower: \"keep\" copies "
      "them byte for byte, \"drop\" leaves them out, \"refuse\" stops the job."));
  out.push_back(text(
      "model", "frozen", [](JobSpec& job) -> std::string& { return job.model.frozen; },
      "Parameters that were not trained in any layer, and so have no optimizer state: patterns "
      "of Megatron's names, such as \"embedding.*; *.mlp.router.*\"."));
  out.push_back(text(
      "model", "lora_alpha", [](JobSpec& job) -> std::string& { return job.model.lora_alpha; },
      "The alpha of a LoRA adapter, a number, where the source does not state it."));
  out.push_back(choice<QuantChoice>(
      "model", "quant", [](JobSpec& job) -> QuantChoice& { return job.model.quant; },
      {"keep", "dequantise-bf16"},
      "Quantised weights: keep every byte, or compute BF16 values. Nothing is ever quantised."));
  out.push_back(choice<AdapterChoice>(
      "model", "adapter", [](JobSpec& job) -> AdapterChoice& { return job.model.adapter; },
      {"keep", "merge"},
      "\"merge\" adds the LoRA adapter in source.adapter to the weights, computed in F32 and "
      "rounded once. \"keep\" changes no weight."));
  out.push_back(choice<ForeignClassChoice>(
      "model", "foreign_classes",
      [](JobSpec& job) -> ForeignClassChoice& { return job.model.foreign_classes; },
      {"refuse", "keep", "drop"},
      "Pickled settings and objects that name a class not known to be plain data: \"refuse\" "
      "stops the job, \"drop\" leaves them out with a\n"
      "warning, \"keep\" copies classes of other packages, which the program that loads the "
      "target imports and runs."));
  out.push_back(size(
      "run", "memory", [](JobSpec& job) -> std::uint64_t& { return job.run.memory_bytes; },
      "Staging memory of one rank. A smaller size makes more rounds and changes no byte of the result."));
  out.push_back(size_or_auto(
      "run", "device_memory",
      [](JobSpec& job) -> std::uint64_t& { return job.run.device_memory_bytes; },
      "With a GPU: GPU memory of one rank; \"auto\" means: as much as run.memory."));
  out.push_back(choice<TransportChoice>(
      "run", "transport", [](JobSpec& job) -> TransportChoice& { return job.run.transport; },
      {"auto", "mpi", "nccl"},
      "How ranks exchange bytes: \"mpi\", \"nccl\" (from GPU to GPU); \"auto\": not at all, "
      "each rank reads what it writes."));
  out.push_back(choice<DeviceChoice>(
      "run", "device", [](JobSpec& job) -> DeviceChoice& { return job.run.device; },
      {"auto", "host", "cuda", "emulated"},
      "Where bytes are rearranged: \"host\", \"cuda\"; \"auto\" uses a GPU if that is faster; "
      "\"emulated\" tests the GPU path without one."));
  out.push_back(choice<IoChoice>(
      "run", "io", [](JobSpec& job) -> IoChoice& { return job.run.io; }, engine_names(),
      "How weights are read and written: through the page cache, \"posix\"; past it (O_DIRECT), \"direct\"; past it with many requests "
      "at a time (io_uring), \"uring\". \"auto\" tries them for about a second where the source has 4 GiB or more, and is \"posix\" "
      "elsewhere. The files are the same."));
  out.push_back(choice<VerifyChoice>(
      "run", "verify", [](JobSpec& job) -> VerifyChoice& { return job.run.verify; },
      {"off", "streamed", "written"},
      "Before the target is published: \"written\" reads it back and compares digests; \"streamed\" only records those of the source."));
  out.push_back(number<std::int64_t>(
      "run", "self_check", [](JobSpec& job) -> std::int64_t& { return job.run.self_check; }, 0,
      most_self_check_elements,
      "So many random elements of each tensor in the target's files are compared with the source before the target is published, at places that a second, separate arithmetic gives; 0: none."));
  out.push_back(choice<HandOutChoice>(
      "run", "hand_out", [](JobSpec& job) -> HandOutChoice& { return job.run.hand_out; },
      {"auto", "never"},
      "Whether a rank that has done its part of the work does some of a slower rank's: \"auto\", in jobs of many rounds whose ranks read and write themselves. The files are the same."));
  out.push_back(number<int>(
      "run", "threads", [](JobSpec& job) -> int& { return job.run.threads; }, 0, most_threads,
      "Threads with which each rank reads, rearranges and writes; 0 means: its share of the cores "
      "of its host, at most 8."));
  out.push_back(number<int>(
      "run", "stall_seconds", [](JobSpec& job) -> int& { return job.run.stall_seconds; }, 1,
      most_stall_seconds,
      "A job without progress for this long, in any phase, is aborted with exit code 8."));
  out.push_back(number<int>(
      "run", "progress_seconds", [](JobSpec& job) -> int& { return job.run.progress_seconds; }, 0,
      most_progress_seconds,
      "Seconds between lines of progress in a log (a terminal has a live line instead), and "
      "between progress events; 0: none."));
}

/// What `reshard nightly` alone makes use of.
void add_nightly(std::vector<Field>& out) {
  constexpr std::int64_t a_week = 7 * 24 * 3600;
  constexpr std::int64_t most_file_parts = 10'000;
  out.push_back(number<std::int64_t>(
      nightly_table, "keep", [](JobSpec& job) -> std::int64_t& { return job.nightly.keep; }, 0,
      most_ranks,
      "How many converted checkpoints stay in target.path; older ones are removed. 0 means: all."));
  out.push_back(number<std::int64_t>(
      nightly_table, "settle_seconds",
      [](JobSpec& job) -> std::int64_t& { return job.nightly.settle_seconds; }, 0, a_week,
      "A checkpoint that no tracker names counts as unfinished if one of its files changed "
      "more recently than this."));
  out.push_back(flag(
      nightly_table, "backfill", [](JobSpec& job) -> bool& { return job.nightly.backfill; },
      "Also convert older checkpoints whose target is missing or outdated, newest first; with "
      "nightly.keep only those that\nwould be kept."));
  out.push_back(flag(
      nightly_table, "since", [](JobSpec& job) -> bool& { return job.nightly.since; },
      "Take over unchanged bytes from the newest other target that counts for nightly.keep, as "
      "target.since does."));
  out.push_back(text(
      nightly_table, "after", [](JobSpec& job) -> std::string& { return job.nightly.after; },
      "A command for /bin/sh, run once for each finished target, whose path is $1 and "
      "RESHARD_TARGET. If it fails, the target is kept,\nthe exit code is 9, and the next "
      "night runs it again. \"\": none."));
  out.push_back(number<std::int64_t>(
      nightly_table, "after_seconds",
      [](JobSpec& job) -> std::int64_t& { return job.nightly.after_seconds; }, 0, a_week,
      "nightly.after is ended if it takes longer than this. 0: no limit."));
  out.push_back(number<std::int64_t>(
      nightly_table, "verify_subset",
      [](JobSpec& job) -> std::int64_t& { return job.nightly.verify_subset; }, 0, most_file_parts,
      "Each night, one part of this many of each kept target is read again and compared with "
      "its record: with 30, everything once\nin thirty nights. 0: none."));
}

std::vector<Field> all_fields() {
  std::vector<Field> out;
  add_source(out);
  add_target(out);
  add_huggingface_and_hdf5(out);
  add_dcp(out);
  add_dist(out);
  add_megatron(out);
  add_layout(out);
  add_model_and_run(out);
  add_nightly(out);
  return out;
}

}  // namespace

std::vector<Field> const& fields() {
  static std::vector<Field> const all = all_fields();
  return all;
}

Field further_axis(std::string const& axis) {
  return with_scope(dist_formats, axis_size(axis, 1, "The size of a further parallel axis."));
}

std::vector<Field> fields_of(JobSpec const& spec) {
  auto const& sizes = spec.target.layout.sizes;
  std::vector<Field> all = fields();
  std::erase_if(
      all, [&](Field const& field) { return !field.axis.empty() && !sizes.contains(field.axis); });
  auto const is_listed = [](std::string const& axis) {
    return std::ranges::any_of(fields(), [&](Field const& field) { return field.axis == axis; });
  };
  auto const last = std::find_if(all.rbegin(), all.rend(), [](Field const& field) {
    return field.key().starts_with(layout_table);
  });
  auto end = last.base();
  for (auto const& [axis, size] : sizes)
    if (!is_listed(axis)) end = all.insert(end, further_axis(axis)) + 1;
  return all;
}

bool has_meaning(Field const& field, FormatId target) {
  return (field.scope & only_for(target)) != 0;
}

}  // namespace reshard::job
