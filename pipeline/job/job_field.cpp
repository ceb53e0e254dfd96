#include "pipeline/job/job_field.hpp"

#include <algorithm>
#include <utility>

#include "core/io/io_engines.hpp"
#include "pipeline/job/field_kinds.hpp"
#include "pipeline/job/format_field.hpp"
#include "pipeline/job/target_fields.hpp"

namespace reshard::job {
namespace {

constexpr std::int64_t most_stall_seconds = 24 * 3600;
constexpr std::int64_t most_threads = 256;
constexpr std::int64_t most_progress_seconds = 24 * 3600;

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
      "\"auto\" compares what is read with the CRCs of .pt and .distcp files and with the source's reshard.json, and refuses files of\n"
      "ranks that are copies of each other; \"files\" reads and compares every file first as well; or \"off\"."));
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
      "Vocabulary rows without padding, for the target's config.json and args, too; 0 means: as in the source."));
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
      "at a time (io_uring), \"uring\". \"auto\" tries them for about a second where the source has 16 GiB or more, and is \"posix\" "
      "elsewhere; a source of which more than half lies in the page cache is read with \"posix\", untried. The files are the same."));
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
  add_target_fields(out);
  add_model_and_run(out);
  add_nightly(out);
  return out;
}

}  // namespace

std::vector<Field> const& fields() {
  static std::vector<Field> const all = all_fields();
  return all;
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
