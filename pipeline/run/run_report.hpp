#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/json.hpp"
#include "core/formats/left_out.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/run/rank_loads.hpp"
#include "pipeline/target/interrupted_run.hpp"
#include "pipeline/verify/self_check.hpp"

namespace reshard {

/// What one of the stages that work side by side did. Seconds are the mean over the ranks; stall is
/// waiting for another stage, for memory or for another rank.
struct StageReport {
  std::uint64_t bytes = 0;  ///< of all ranks
  double busy_seconds = 0;
  double stall_seconds = 0;
};

/// What a job did, or would do. Bytes and counts are sums over the ranks.
struct RunReport {
  JobSpec job;
  bool planned_only = false;
  std::optional<Error> refusal;  ///< with planned_only: the error with which the job would end
                                 ///< before it writes anything
  int ranks = 1;
  std::string source_format;
  std::string source_save;  ///< the folder in source.path that was taken: "iter_0000010"; "" where
                            ///< source.path is the save
  std::string source_layout;  ///< "tp 2 · pp 2 · …" or "safetensors, 3 files"
  std::string map;            ///< the family's map, "" for none
  std::string parts;  ///< what becomes of parts beside the language model; "" where there are none
  std::string transport;    ///< "direct", "mpi" or "nccl"
  std::string device;       ///< "host", "cuda" or "emulated": where bytes are rearranged
  std::string path_reason;  ///< why there
  std::string device_name;  ///< rank 0's, "" on the host path
  Json io;                  ///< the engines that read and wrote, and what a trial of them said
  std::string write_mode;
  std::string
      total_digest;  ///< of the whole model (core/formats/manifest), "" where none was taken
  std::vector<std::string> warnings;

  std::uint64_t logical_tensors = 0;
  std::uint64_t state_bytes = 0;    ///< of optimizer state, each element once
  std::vector<std::string> states;  ///< its slots: "param", "exp_avg", …
  std::uint64_t source_files = 0;
  std::uint64_t source_tensors = 0;
  std::uint64_t replicas_not_read = 0;
  LeftOut left_out;                          ///< of the source, by the map
  std::vector<std::string> trained_padding;  ///< sentences: rows behind the vocabulary that have
                                             ///< values, all of them, and are left out
  std::uint64_t target_files = 0;
  std::uint64_t target_tensors = 0;
  std::uint64_t regions = 0;
  std::uint64_t rounds = 0;
  std::uint64_t payload_read = 0;             ///< bytes of the model, each counted once
  std::uint64_t payload_written = 0;          ///< with replicas
  std::uint64_t target_bytes = 0;             ///< sizes of the target's files
  std::uint64_t free_bytes = 0;               ///< where the target goes
  std::uint64_t staging_bytes = 0;            ///< per rank, at most
  std::optional<RankLoads> per_rank;          ///< with planned_only
  std::optional<InterruptedRun> interrupted;  ///< with planned_only: what a run would find

  std::uint64_t earlier_runs = 0;  ///< that were interrupted, and resumed
  std::uint64_t bytes_reused = 0;  ///< payload that they had written

  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_cloned = 0;  ///< of the target, shared with the source instead of written
  std::uint64_t bytes_exchanged = 0;
  std::uint64_t cells_handed_out = 0;  ///< that another rank did than was planned (run.hand_out)
  std::uint64_t bytes_handed_out = 0;  ///< payload of these
  std::uint64_t bytes_copied = 0;
  std::uint64_t bytes_uploaded = 0;    ///< to GPUs
  std::uint64_t bytes_downloaded = 0;  ///< from GPUs
  std::uint64_t digests_compared =
      0;  ///< tensors of the source that were compared with its manifest
  std::uint64_t replicas_compared = 0;     ///< of the source, with the one that was read
  std::uint64_t records_compared = 0;      ///< zip records of the source whose CRC-32 was compared
  std::uint64_t masters_compared = 0;      ///< logical tensors whose master weights round to them
  std::uint64_t moments_compared = 0;      ///< second moments that are finite and not negative
  std::uint64_t bytes_verified = 0;        ///< read back from the target before it was published
  std::uint64_t bytes_verified_early = 0;  ///< of these, of files that were begun while others were
                                           ///< written
  std::uint64_t bytes_shared = 0;  ///< not read: cloned from a source whose digests are recorded
  std::string since_refused;       ///< why nothing of target.since is taken over; "" where it is
  std::uint64_t since_files = 0;   ///< of the previous target, that may be taken over
  std::uint64_t since_bytes = 0;   ///< likewise
  std::uint64_t since_unread_bytes = 0;  ///< of the source, not read: both have recorded the tensor
  std::uint64_t files_reused = 0;        ///< complete ones
  std::uint64_t file_bytes_reused = 0;
  std::uint64_t bytes_kept = 0;       ///< of tensors, not written: the previous target has them
  std::uint64_t bytes_filled = 0;     ///< of those, copied from it
  std::string reused_verified;        ///< when the oldest of the reused files was read back
  std::uint64_t tensors_changed = 0;  ///< against the previous target
  std::vector<std::string> changed_tensors;  ///< the first of them
  std::uint64_t read_calls = 0;
  std::uint64_t write_calls = 0;
  std::uint64_t clone_calls = 0;
  std::uint64_t peak_memory_bytes = 0;     ///< resident, of the largest rank
  std::uint64_t planned_memory_bytes = 0;  ///< resident in this rank at most until all was planned
  std::uint64_t device_memory_bytes = 0;   ///< of its GPU, in the rank that took most
  StageReport read;                        ///< from the source
  StageReport exchange;                    ///< copied, converted, sent and received
  StageReport write;                       ///< to the target
  double header_seconds = 0;
  double plan_seconds = 0;
  double stream_seconds = 0;
  double verify_seconds = 0;
  std::optional<SelfCheckResult> self_check;  ///< with run.self_check
  double self_check_seconds = 0;
  double commit_seconds = 0;
  double total_seconds = 0;
};

/// One JSON document, keys in a fixed order.
Json report_json(RunReport const& report);

/// Bytes that were read, or written, for each byte of the model that had to be; 1 is the least.
double read_amplification(RunReport const& report);
double write_amplification(RunReport const& report);

/// Readable lines, the last with a newline. `brief` says what was done and whether it is right, in
/// at most `brief_report_lines` lines; `full` also how it was planned, where time went, and the
/// job's keys.
enum class ReportDetail { brief, full };
constexpr int brief_report_lines = 15;
std::string report_text(RunReport const& report, ReportDetail detail);

}  // namespace reshard
