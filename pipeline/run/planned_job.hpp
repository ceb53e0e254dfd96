#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/io/file_io.hpp"
#include "core/plan/schedule.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/run/path_choice.hpp"
#include "pipeline/run/run.hpp"
#include "pipeline/run/run_report.hpp"
#include "pipeline/target/job_identity.hpp"
#include "pipeline/target/system_facts.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/stream/stream.hpp"

namespace reshard {

/// A job up to the moment before anything is written: the source's headers, the plan, the path of
/// the bytes, and what the report says of them. A base of what carries the job out.
class PlannedJob {
 protected:
  using Clock = std::chrono::steady_clock;

  PlannedJob(JobSpec const& spec, RunContext const& context, Comm const& comm);
  ~PlannedJob() = default;

  /// Reads the headers, plans, chooses. Collective.
  void prepare();

  bool exchanging() const {
    return spec_.run.transport != TransportChoice::automatic && comm_.size() > 1;
  }
  /// Ranks write through libhdf5 and MPI-IO, where they wait for each other.
  bool by_library() const {
    return spec_.target.io == TargetIo::independent || spec_.target.io == TargetIo::collective;
  }
  bool on_device() const { return path_.device != DeviceChoice::host; }

  /// What the report says of rounds and memory; again after the plan or the path has changed.
  void describe_path();
  /// The arena: what the job states, or less when this rank has less to do. Fresh memory costs
  /// time.
  std::uint64_t arena_bytes() const;
  RoundSource rounds() const;
  /// Payload of these cells.
  std::uint64_t target_bytes_of(CellRange cells) const;

  JobSpec const& spec_;
  RunContext const& context_;
  Comm const& comm_;
  std::shared_ptr<FileIo> source_io_;
  Clock::time_point begin_ = Clock::now();
  PlanLimits limits_;
  Checkpoint source_;
  /// The small files that describe the source and the model, as rank 0 read them.
  std::map<std::filesystem::path, FileStamp> described_by_;
  JobIdentity identity_;
  JobPlan plan_;
  std::optional<Manifest> manifest_;  ///< of the source
  std::vector<RankDevices> devices_;
  PathChoice path_;
  RunReport report_;

 private:
  void check_choices() const;
  void check_verify() const;
  void check_files() const;
  void check_source_files() const;
  void read_source();
  void make_plan();
  void agree_on_plan();
  std::set<std::uint32_t> files_to_read() const;
  void check_same_files() const;
  void check_same_file(std::size_t file, FileStamp const& now) const;
  std::uint64_t round_memory() const;
  void choose_path_of_bytes();
  std::uint32_t first_view_file() const { return static_cast<std::uint32_t>(source_.files.size()); }
  void describe();
  double growth() const;
  std::uint64_t round_bytes() const;
  std::uint64_t count_rounds() const;
  ExchangeRounds exchange_rounds() const;
  std::uint64_t exchange_round_bytes() const;
};

/// Seconds from a moment until now.
double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace reshard
