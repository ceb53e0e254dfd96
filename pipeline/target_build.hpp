#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job_spec.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/verify/scan.hpp"
#include "stages/write/extent_writer.hpp"
#include "stages/write/publish.hpp"
#include "stages/write/target_files.hpp"

namespace reshard {

/// The target of a running job, from its empty staging folder to its publication. Every call but observe() is collective. Used by one thread, but
/// for observe(), which the writing thread calls.
class TargetBuild {
 public:
  /// What it refers to outlives it.
  TargetBuild(JobSpec const& spec, JobPlan const& plan, Comm const& comm);

  /// Looks whether the target may be written, takes its lock, makes every file at full size. `needed` and `free` are bytes of the disk.
  void begin(SourceCheckpoint const& source, std::uint64_t needed, std::uint64_t free);
  /// The files that rounds write, by the plan's numbers.
  std::vector<std::filesystem::path> files() const;
  /// Sees what this rank writes.
  void observe(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes);

  /// Completes and syncs every file. `digests` are those of the source, by tensor of the plan (empty: not taken).
  void finish(std::span<std::uint64_t const> digests);
  /// With VerifyChoice::written: compares the files, as they are on the device, with what was to be written. An Error of kind self_check names what
  /// disagrees. Writes the manifest, unless nothing is to be verified.
  void check(std::string_view source_format, std::string_view source_layout);
  void publish();

  /// The digests of the source after finish(), by tensor of the plan.
  std::span<std::uint64_t const> digests() const { return digests_; }
  std::uint64_t bytes_checked() const { return found_.bytes_read; }
  std::string const& total() const { return total_; }

 private:
  void check_source_apart(SourceCheckpoint const& source) const;
  void check_replaceable() const;
  void for_my_files(std::function<void(std::uint32_t)> const& work) const;
  void write_small_files();
  void add_copied(SideCopy const& side);
  void check_small_files();
  void add_integrity();
  void check_files();
  std::vector<FileRecord> file_records() const;
  Manifest manifest(std::string_view source_format, std::string_view source_layout) const;

  JobSpec const& spec_;
  JobPlan const& plan_;
  Comm const& comm_;
  std::optional<Publication> publication_;
  std::vector<TargetLayout> layouts_;
  std::optional<RecordChecksums> records_;
  std::optional<FileDigests> file_digests_;
  std::vector<std::uint64_t> digests_;
  std::vector<FileRecord> small_files_;  ///< of rank 0: as they were to be written
  ScanResult found_;
  std::string total_;
  bool integrity_ = false;
};

}  // namespace reshard
