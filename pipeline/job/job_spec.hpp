#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/format_id.hpp"
#include "core/formats/model_changes.hpp"
#include "core/formats/read_choice.hpp"
#include "core/formats/targets/target_options.hpp"

namespace reshard {

/// Use of state that cannot be carried over: stop with a sentence, or leave it out. `drop` leaves
/// it out in any case.
enum class StatePolicy { refuse, drop };
/// Pickled objects of a DCP source: inspected before they are copied, or not.
enum class SourceObjects { look, unread };
/// Quantised weights: their bytes are kept, or they become BF16.
enum class QuantChoice { keep, dequantise_bf16 };
enum class TransportChoice { automatic, mpi, nccl };
/// How weights are read and written: as a trial says, or by the engines in the order of
/// io_engines().
enum class IoChoice { automatic, posix, direct, uring };
/// Where bytes are rearranged; `emulated` takes the GPU path without a GPU, in host memory.
enum class DeviceChoice { automatic, host, cuda, emulated };

/// How the target is checked before it is published: not at all; the source's digests are taken and
/// recorded; they are compared with the files as they are on the device.
enum class VerifyChoice { off, streamed, written };

/// The parts of a source that are compared with its own manifest or integrity.json: the digests of
/// all that is read; every file, before the job; nothing.
enum class SourceVerify { automatic, files, off };
/// Use of replicas, which several files of a source hold alike: small ones are compared with each
/// other; or the first that the plan finds is taken unseen.
enum class ReplicaChoice { compare, first };
/// Where the tensors of a Hugging Face folder are: its index tells, or the headers of its files.
enum class IndexChoice { read, rebuild };
/// Whether a target gets a SHA256SUMS; automatic: when all its files are read back.
enum class SumsChoice { automatic, always, never };

/// Whether a target is laid out so that its file system can share extents with other checkpoints,
/// and shares them; automatic: where the file system can.
enum class ReflinkChoice { automatic, always, never };

/// Whether a rank that has done its cells does some of others'; automatic: where ranks read and
/// write their cells themselves and each has several rounds to do.
enum class WorkStealingChoice { automatic, never };

/// The word of a job file for an I/O engine.
std::string_view name(IoChoice io);

/// A job: the TOML file with its defaults filled in. docs: `reshard --print-defaults`.
///
/// Paths are as the user wrote them; relative ones count from the current directory, wherever the
/// job file lies.
struct JobSpec {
  struct Source {
    std::string path;
    FormatId format = FormatId::automatic;
    StatePolicy optimizer = StatePolicy::refuse;
    StatePolicy rng = StatePolicy::refuse;
    std::string prefix;  ///< DCP only: keys without it are left out, from the others it is cut off
    std::string config;  ///< config.json, or its folder, that describes the model; "": what lies
                         ///< beside the weights
    SourceVerify verify = SourceVerify::automatic;
    SourceObjects objects = SourceObjects::look;
    ReplicaChoice replicas = ReplicaChoice::compare;
    IndexChoice index = IndexChoice::read;
    int tp = 1;  ///< Megatron Lite only: its tensor parallelism, which the files do not say
    std::string adapter;  ///< an adapter's folder, with model.adapter = merge; "" for none
    std::vector<std::string> average;  ///< further checkpoints: the mean of all is written
    int etp = 1;  ///< Megatron Lite only: its expert tensor parallelism, which the files do not say
    friend bool operator==(Source const&, Source const&) = default;
  };

  /// The mesh of a target whose files or chunks are cut by one, and the shares of its pipeline.
  struct Layout {
    /// Sizes of the parallel axes by name: the usual ones always, others where the map knows them
    /// and they are above 1. vpp follows from `pipeline` when that is given; etp 0 is equal to tp,
    /// Megatron's own default.
    std::map<std::string, int, std::less<>> sizes = {
        {"tp", 1}, {"pp", 1}, {"vpp", 1}, {"ep", 1}, {"etp", 0}};
    int first_stage_layers = -1;  ///< -1: not set
    int last_stage_layers = -1;   ///< -1: not set
    std::string pipeline;         ///< "Ettt|(tt|)*29,m|L"; "" for none
    friend bool operator==(Layout const&, Layout const&) = default;

    /// 1 for an axis that is not named.
    int size(std::string_view axis) const {
      auto const found = sizes.find(axis);
      return found == sizes.end() ? 1 : found->second;
    }
  };

  struct Target {
    std::string path;
    FormatId format = FormatId::megatron;  ///< never automatic
    bool replace = false;                  ///< an existing target is refused unless this is set
    TargetDType dtype = TargetDType::keep;
    ReflinkChoice reflink = ReflinkChoice::automatic;
    SumsChoice sha256sums = SumsChoice::automatic;
    std::string incremental_from;  ///< a previous target, of which what is unchanged is taken over;
                                   ///< "none": what the next one needs is recorded; "": neither
    bool incremental_links = false;  ///< files that are unchanged may be hard links
    Layout layout;                   ///< Megatron formats and DCP only
    TargetOptions options;           ///< of some formats only
    ModelChanges changes;
    friend bool operator==(Target const&, Target const&) = default;
  };

  struct Model {
    std::string map = "auto";  ///< a map's name, the path of a map file, or "auto": found by the
                               ///< model's own description
    std::int64_t true_vocab_size = 0;  ///< 0: as the source says
    Unmapped unmapped = Unmapped::refuse;
    std::string frozen;      ///< "a.*; b.*": patterns of Megatron's names; "" for none
    std::string lora_alpha;  ///< of an adapter whose checkpoint does not state it; "": as it says
    QuantChoice quant = QuantChoice::keep;
    AdapterUse adapter = AdapterUse::keep;
    ForeignClasses foreign_classes = ForeignClasses::refuse;
    friend bool operator==(Model const&, Model const&) = default;
  };

  struct Run {
    std::uint64_t memory_bytes = 128ULL << 20U;  ///< staging memory of one rank
    std::uint64_t device_memory_bytes =
        0;  ///< memory of its GPU that one rank takes, on the GPU path; 0: as memory_bytes
    TransportChoice transport = TransportChoice::automatic;
    DeviceChoice device = DeviceChoice::automatic;
    IoChoice io = IoChoice::automatic;
    VerifyChoice verify = VerifyChoice::written;
    std::int64_t self_check = 0;  ///< elements of each stored tensor of the target that a second
                                  ///< arithmetic finds in the source; 0: none
    WorkStealingChoice work_stealing = WorkStealingChoice::automatic;
    int threads = 0;            ///< of each stage of one rank; 0: as many as its share of the cores
    int stall_seconds = 600;    ///< a job in which nothing moves for so long is ended
    int progress_seconds = 30;  ///< between lines of progress in a log, and between events; 0: none

    /// The default resolved.
    std::uint64_t device_bytes() const {
      return device_memory_bytes == 0 ? memory_bytes : device_memory_bytes;
    }
    friend bool operator==(Run const&, Run const&) = default;
  };

  /// `reshard nightly` alone.
  struct Nightly {
    std::int64_t keep = 0;             ///< converted checkpoints that stay; 0: all
    std::int64_t settle_seconds = 60;  ///< files that are younger are still being written, unless a
                                       ///< tracker names their checkpoint
    bool backfill = false;     ///< older complete checkpoints without a target are converted, too
    bool incremental = false;  ///< what the last target has unchanged is taken over from it
    std::string after;         ///< a command of the shell for each finished target; "" for none
    std::int64_t after_seconds = 0;  ///< how long it may take; 0: as long as it likes
    std::int64_t verify_subset = 0;  ///< each night reads one of so many parts of every target that
                                     ///< it did not make itself; 0: none
    friend bool operator==(Nightly const&, Nightly const&) = default;
  };

  Source source;
  Target target;
  Model model;
  Run run;
  Nightly nightly;
  /// Where keys are written, by their full names: "job.toml:7:14", `--set "target.layout.tp=4"`.
  std::map<std::string, std::string, std::less<>> places = {};
  std::vector<std::string> notes = {};  ///< about keys that are given by an earlier name

  /// Whether they are the same job, wherever its keys are written.
  friend bool operator==(JobSpec const& a, JobSpec const& b) {
    return a.source == b.source && a.target == b.target && a.model == b.model && a.run == b.run &&
           a.nightly == b.nightly;
  }
};

/// JobSpec::Target::incremental_from where there is no previous target yet.
inline constexpr std::string_view no_previous = "none";

/// The parallel axes that the chosen map knows; asked for when a layout names another axis than the
/// usual ones.
using MeshAxisNames = std::function<std::vector<std::string>()>;

/// The use of a job file: its table [nightly] has a meaning for one command only; for `source`
/// only [source] and [model] have one, and the rest may be missing.
enum class JobUse { run, nightly, source };

/// Reads a job file's text. Overrides are "key=value" with the key's full name ("run.memory=1
/// GiB"); they win over the file, later ones over earlier.
///
/// Every mistake is reported at once in one Error of kind usage, a line each, with its place:
///   job.toml:12:9: [target] layout.tp = -1: …
/// A mistake of TOML itself ends the reading, so it is reported alone.
JobSpec parse_job_spec(std::string_view text, std::string_view file_name,
                       std::span<std::string const> overrides, JobUse use = JobUse::run,
                       MeshAxisNames const& mesh_axes = {});

/// A key that an option gives: "--layout tp=4", "target.layout.tp", "4".
struct GivenKey {
  std::string place;
  std::string key;
  std::string word;
};
/// A job without a job file. Keys and mistakes as in parse_job_spec(), with the places of the keys.
JobSpec job_of_keys(std::span<GivenKey const> keys, std::span<std::string const> overrides,
                    MeshAxisNames const& mesh_axes = {});

/// The spec as a job file with the keys that are not at their default: parsing it gives an equal
/// spec.
std::string short_job_text(JobSpec const& spec);

/// The complete spec as a job file for `run`: keys without a meaning for this target, and
/// [nightly], are left out. Parsing it again gives an equal spec.
std::string print_spec(JobSpec const& spec);

/// The keys that are not at their default, a line "table.key = value" each.
std::vector<std::string> changed_keys(JobSpec const& spec);

/// A complete job file that names every key, with its default and a sentence each.
std::string default_job_text();

}  // namespace reshard
