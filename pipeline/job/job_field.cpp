#include "pipeline/job/job_field.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "core/io/io_engines.hpp"
#include "pipeline/job/format_field.hpp"
#include "pipeline/job/target_fields.hpp"

namespace reshard::job {
namespace {

constexpr std::int64_t most_stall_seconds = 24 * 3600;
constexpr std::int64_t most_threads = 256;
constexpr std::int64_t most_progress_seconds = 24 * 3600;

void add_source(std::vector<Field>& out) {
  std::vector<std::string> const policies = {"refuse", "drop"};
  using Source = JobSpec::Source;
  add(out, "source", &JobSpec::source,
      {keys::with_example(
           keys::text(
               "path", &Source::path,
               "The checkpoint to read: a Megatron or torch_dist root or iteration folder, a DCP or a "
               "Hugging Face folder. It is never changed.\n"
               "Relative paths start at the current directory, not at this file."),
           "\"/path/to/source\""),
       source_format(),
       keys::choice(
           "optimizer", &Source::optimizer, policies,
           "Optimizer state: converted if both formats can hold it; if they cannot, \"refuse\" stops "
           "the job. \"drop\" leaves it out."),
       keys::choice("rng", &Source::rng, policies,
                    "Random-number state of the source: the same choices."),
       keys::text(
           "prefix", &Source::prefix,
           "DCP formats: only keys with this prefix are read, and the prefix is removed, such as "
           "\"model.\". Other keys are counted and named; in Megatron's formats they stop the job "
           "unless model.unmapped = \"drop\". \"\": none, or of plain DCP the only one behind which "
           "the names are that a known config.json asks for."),
       keys::text(
           "config", &Source::config,
           "The config.json of the source's model, or its folder. \"\": the one in the source."),
       keys::text(
           "adapter", &Source::adapter,
           "With model.adapter = \"merge\": the folder of the adapter (LoRA) whose weights are merged "
           "into the source's. Where the source is a model that peft has wrapped: its "
           "adapter_config.json, if it is not beside the weights."),
       keys::choice(
           "index", &Source::index, {"read", "rebuild"},
           "Hugging Face and Mistral: \"rebuild\" does without the index of the weights, which is lost or stale, and takes every tensor of all\n"
           "*.safetensors files."),
       keys::texts(
           "average", &Source::average,
           "Further checkpoints of the same model, in the source's format and layout: every weight of the target is the mean of the source's and "
           "theirs, summed in F32 in this order and rounded once. Optimizer state has no mean: source.optimizer = \"drop\"."),
       keys::choice(
           "verify", &Source::verify, {"auto", "files", "off"},
           "\"auto\" compares what is read with the CRCs of .pt and .distcp files and with the source's reshard.json, and refuses files of\n"
           "ranks that are copies of each other; \"files\" reads and compares every file first as well; or \"off\"."),
       keys::choice(
           "replicas", &Source::replicas, {"compare", "first"},
           "Norms, biases and other tensors below 1 MiB that several files hold, and tied layers that are stored twice: \"compare\" stops the job when "
           "they "
           "differ, \"first\" takes one."),
       keys::choice(
           "objects", &Source::objects, {"look", "unread"},
           "Pickled objects of DCP formats are copied byte for byte: \"look\" first reads each and "
           "applies model.foreign_classes; \"unread\" trusts them."),
       keys::number(
           "tp", &Source::tp, 1, most_ranks,
           "Megatron Lite only: the tensor parallel size of its run, which its files do not record."),
       keys::number(
           "etp", &Source::etp, 1, most_ranks,
           "Megatron Lite only: the expert tensor parallel size of its run, which its files do not "
           "record.")});
}

std::vector<std::string> engine_names() {
  std::vector<std::string> names = {"auto"};
  for (IoEngine const& engine : io_engines()) names.emplace_back(engine.name);
  return names;
}

void add_model(std::vector<Field>& out) {
  using Model = JobSpec::Model;
  add(out, "model", &JobSpec::model,
      {keys::text("map", &Model::map,
                  "The model map: a name of configs/models, the path of a map file, or \"auto\"."),
       keys::number(
           "true_vocab_size", &Model::true_vocab_size, 0, std::numeric_limits<std::int64_t>::max(),
           "Vocabulary rows without padding, for the target's config.json and args, too; 0 means: as in the source."),
       keys::choice(
           "unmapped", &Model::unmapped, {"refuse", "keep", "drop"},
           "Stored tensors that the map lists under `keep`, such as a vision tower: \"keep\" copies "
           "them byte for byte, \"drop\" leaves them out, \"refuse\" stops the job."),
       keys::text(
           "frozen", &Model::frozen,
           "Parameters that were not trained in any layer, and so have no optimizer state: patterns "
           "of Megatron's names, such as \"embedding.*; *.mlp.router.*\"."),
       keys::text("lora_alpha", &Model::lora_alpha,
                  "The alpha of a LoRA adapter, a number, where the source does not state it."),
       keys::choice(
           "quant", &Model::quant, {"keep", "dequantise-bf16"},
           "Quantised weights of the source: keep every byte, or compute BF16 values. target.quant quantises those of the target."),
       keys::choice(
           "adapter", &Model::adapter, {"keep", "merge", "drop", "only"},
           "\"merge\" adds the LoRA adapter in source.adapter, or the one in a source that peft has "
           "wrapped (DCP, FSDP), to the weights, computed in F32 and rounded once. Of such a source "
           "\"drop\" takes the base model alone, and \"only\" the adapter. \"keep\" changes no weight."),
       keys::choice(
           "foreign_classes", &Model::foreign_classes, {"refuse", "keep", "drop"},
           "Pickled settings and objects that name a class not known to be plain data: \"refuse\" "
           "stops the job, \"drop\" leaves them out with a\n"
           "warning, \"keep\" copies classes of other packages, which the program that loads the "
           "target imports and runs.")});
}

void add_run(std::vector<Field>& out) {
  using Run = JobSpec::Run;
  add(out, "run", &JobSpec::run,
      {keys::size(
           "memory", &Run::memory_bytes,
           "Staging memory of one rank. A smaller size makes more rounds and changes no byte of the result."),
       keys::size_or_auto(
           "device_memory", &Run::device_memory_bytes,
           "With a GPU: GPU memory of one rank; \"auto\" means: as much as run.memory."),
       keys::choice(
           "transport", &Run::transport, {"auto", "mpi", "nccl"},
           "How ranks exchange bytes: \"mpi\", \"nccl\" (from GPU to GPU); \"auto\": not at all, "
           "each rank reads what it writes."),
       keys::choice(
           "device", &Run::device, {"auto", "host", "cuda", "emulated"},
           "Where bytes are rearranged: \"host\", \"cuda\"; \"auto\" uses a GPU if that is faster; "
           "\"emulated\" tests the GPU path without one."),
       keys::choice(
           "io", &Run::io, engine_names(),
           "How weights are read and written: through the page cache, \"posix\"; past it (O_DIRECT), \"direct\"; past it with many requests "
           "at a time (io_uring), \"uring\". \"auto\" tries them for about a second where the source has 16 GiB or more, and is \"posix\" "
           "elsewhere; a source of which more than half lies in the page cache is read with \"posix\", untried. The files are the same."),
       keys::choice(
           "verify", &Run::verify, {"off", "streamed", "written"},
           "Before the target is published: \"written\" reads it back and compares digests; \"streamed\" only records those of the source."),
       keys::number(
           "self_check", &Run::self_check, 0, most_self_check_elements,
           "So many random elements of each tensor in the target's files are compared with the source before the target is published, at places that a second, separate arithmetic gives; 0: none."),
       keys::choice(
           "work_stealing", &Run::work_stealing, {"auto", "never"},
           "Whether a rank that has done its part of the work does some of a slower rank's: \"auto\", in jobs of many rounds whose ranks read and write themselves. The files are the same."),
       keys::number(
           "threads", &Run::threads, 0, most_threads,
           "Threads with which each rank reads, rearranges and writes; 0 means: its share of the cores "
           "of its host, at most 8."),
       keys::number(
           "stall_seconds", &Run::stall_seconds, 1, most_stall_seconds,
           "A job without progress for this long, in any phase, is aborted with exit code 8."),
       keys::number(
           "progress_seconds", &Run::progress_seconds, 0, most_progress_seconds,
           "Seconds between lines of progress in a log (a terminal has a live line instead), and "
           "between progress events; 0: none.")});
}

/// Keys of `reshard nightly` alone.
void add_nightly(std::vector<Field>& out) {
  constexpr std::int64_t a_week = 7 * 24 * 3600;
  constexpr std::int64_t most_file_parts = 10'000;
  using Nightly = JobSpec::Nightly;
  add(out, nightly_table, &JobSpec::nightly,
      {keys::number(
           "keep", &Nightly::keep, 0, most_ranks,
           "How many converted checkpoints stay in target.path; older ones are removed. 0 means: all."),
       keys::number(
           "settle_seconds", &Nightly::settle_seconds, 0, a_week,
           "A checkpoint that no tracker names counts as unfinished if one of its files changed "
           "more recently than this."),
       keys::flag(
           "backfill", &Nightly::backfill,
           "Also convert older checkpoints whose target is missing or outdated, newest first; with "
           "nightly.keep only those that\nwould be kept."),
       keys::flag(
           "incremental", &Nightly::incremental,
           "Take over unchanged bytes from the newest other target that counts for nightly.keep, as "
           "target.incremental_from does."),
       keys::text(
           "after", &Nightly::after,
           "A command for /bin/sh, run once for each finished target, whose path is $1 and "
           "RESHARD_TARGET. If it fails, the target is kept,\nthe exit code is 9, and the next "
           "night runs it again. \"\": none."),
       keys::number("after_seconds", &Nightly::after_seconds, 0, a_week,
                    "nightly.after is ended if it takes longer than this. 0: no limit."),
       keys::number(
           "verify_subset", &Nightly::verify_subset, 0, most_file_parts,
           "Each night, one part of this many of each kept target is read again and compared with "
           "its record: with 30, everything once\nin thirty nights. 0: none.")});
}

std::vector<Field> all_fields() {
  std::vector<Field> out;
  add_source(out);
  add_target_fields(out);
  add_model(out);
  add_run(out);
  add_nightly(out);
  return out;
}

}  // namespace

bool is_path(std::string_view key) {
  constexpr std::array<std::string_view, 9> keys = {
      "source.path",    "source.config",    "source.adapter",          "source.average",
      "target.path",    "target.reference", "target.incremental_from", "target.rows_from",
      "target.mtp_from"};
  return std::ranges::find(keys, key) != keys.end();
}

std::string with_home(std::string path) {
  char const* const home = std::getenv("HOME");
  if (home == nullptr || !std::string_view(home).starts_with('/')) return path;
  return path == "~" || path.starts_with("~/") ? home + path.substr(1) : path;
}

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
  return field.formats.empty() || std::ranges::count(field.formats, target) > 0;
}

}  // namespace reshard::job
