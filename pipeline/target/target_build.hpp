#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/io/file_set.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/target/job_identity.hpp"
#include "pipeline/target/run_journal.hpp"
#include "pipeline/target/target_preflight.hpp"
#include "pipeline/target/work_account.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/stream/stream.hpp"
#include "stages/verify/scan.hpp"
#include "stages/write/edge_bytes.hpp"
#include "stages/write/extent_writer.hpp"
#include "stages/write/publish.hpp"
#include "stages/write/target_files.hpp"

namespace reshard {

/// The target of a running job, from its empty staging folder to its publication. Every call but
/// observe() is collective. Used by one thread, but for observe(), which the writing thread calls.
class TargetBuild {
 public:
  /// What it refers to outlives it.
  TargetBuild(JobSpec const& spec, JobPlan const& plan, Comm const& comm);

  /// What a run needs to know of the one before it.
  struct Beginning {
    JobIdentity identity;
    DiskSpace space;
    bool fresh = false;  ///< what an earlier run left is not gone on with
    /// Where the ranks write together nothing can be gone on with.
    bool journaled = true;
  };
  /// Looks whether the target may be written and takes its lock. Goes on with what an earlier run
  /// of the same job left, or makes every file at full size.
  void begin(Checkpoint const& source, Beginning const& beginning);
  /// Whether an earlier run of the same job has written and verified everything, and could only not
  /// give it its name: then publish() is all that is left to do.
  bool is_complete() const { return complete_; }
  /// What earlier runs did; nothing when this is the first.
  std::optional<EarlierWork> const& earlier() const { return earlier_; }
  /// On rank 0, what was not said before: why an earlier run was not gone on with, that there are
  /// no locks, what could not be removed; as sentences.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }
  /// Before rounds are written. `kept`: which cells of the whole plan there are now.
  void begin_rounds(bool lockstep, std::vector<std::uint32_t> kept);
  /// Notes a round as done; from the writing thread.
  void note(FinishedRound const& round);
  /// Whether what is there shall stay for the next run when this one ends without publishing. What
  /// has been verified stays in any case.
  void keep(bool kept);
  /// The files that rounds write, from begin() on. What ExtentWriter keeps back goes to edges().
  FileSet& open_files() { return *open_files_; }
  EdgeBytes* edges() { return edges_ ? &*edges_ : nullptr; }
  /// Where libhdf5 has written: what each machine has of it reaches the device. Collective.
  void sync_everywhere() const;
  /// What to say for an error of this run: when the staging folder is not there any more, that is
  /// the reason.
  Error explained(Error const& error) const;
  /// After a failed write-back nobody goes on with what is there. Not collective; for any thread.
  void distrust_lost_writes() const;
  /// The files that rounds write, by the plan's numbers.
  std::vector<std::filesystem::path> files() const;
  /// Sees what this rank writes.
  void observe(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes);

  /// Adds up what all ranks and earlier runs have done: an Error of kind self_check where that is
  /// not the plan, each part once. Completes and syncs every file. `digests` are those of the
  /// source, by tensor of the plan (empty: not taken).
  void finish(std::span<std::uint64_t const> digests);
  /// With VerifyChoice::written: compares the files, as they are on the device, with what was to be
  /// written. An Error of kind self_check names what disagrees. Writes the manifest, unless nothing
  /// is to be verified. `watch` is told again and again how many bytes this rank has read back;
  /// what it throws ends the comparison.
  void check(std::string_view source_format, std::string_view source_layout,
             std::function<void(std::uint64_t)> const& watch);
  void publish();

  /// Members for the "source" of the manifest, besides its path, format and layout.
  void remember_source(Json const& record) { source_record_ = record; }

  /// The digests of the source after finish(), by tensor of the plan.
  std::span<std::uint64_t const> digests() const { return digests_; }
  /// What was done, after finish().
  WorkAccount const& account() const { return *account_; }
  std::uint64_t bytes_checked() const { return found_.bytes_read; }
  std::string const& total() const { return total_; }

 private:
  /// What begin() finds.
  enum class Found { nothing, part, all };
  Found take_over(Beginning const& beginning);
  void use_token(std::string const& token);
  std::optional<std::string> obstacle(RunJournal const& journal,
                                      std::filesystem::path const& staging,
                                      Beginning const& beginning) const;
  void note_job() const;
  void seal();
  void remove_unplanned() const;
  void restore_sums(JournalEntry const& done);
  void add_stamp();
  void for_my_files(std::function<void(std::uint32_t)> const& work) const;
  void write_held(std::span<HeldBytes const> held) const;
  void write_small_files();
  void copy_sidecars(huggingface::Folder const& from, std::filesystem::path const& to);
  void add_copied(SideCopy const& side);
  void check_small_files();
  void check_nothing_else() const;
  void add_integrity();
  void check_files(std::function<void(std::uint64_t)> const& watch);
  std::vector<FileRecord> file_records() const;
  Json file_names() const;
  Manifest manifest(std::string_view source_format, std::string_view source_layout) const;

  JobSpec const& spec_;
  JobPlan const& plan_;
  Comm const& comm_;
  std::optional<Publication> publication_;
  std::filesystem::path staging_;  ///< its name on every rank; "" before begin()
  std::vector<TargetLayout> layouts_;
  std::optional<FileSet> open_files_;  ///< from begin() on
  std::optional<EdgeBytes> edges_;
  std::optional<RunJournal>
      journal_;  ///< from begin() on; behind the files, which it syncs to its end
  bool journaled_ = false;
  bool complete_ = false;
  JobIdentity identity_;  ///< of rank 0
  std::optional<EarlierWork> earlier_;
  std::vector<std::string> warnings_;
  std::optional<WorkAccount> account_;
  std::vector<std::uint32_t> noted_records_;  ///< the sums as they stood at the last noted round
  std::vector<std::uint64_t> noted_files_;
  std::optional<RecordChecksums> records_;
  std::optional<FileDigests> file_digests_;
  std::vector<std::uint64_t> digests_;
  std::vector<FileRecord> small_files_;  ///< of rank 0: as they were to be written
  ScanResult found_;
  std::string total_;
  Json source_record_;
  bool integrity_ = false;
};

}  // namespace reshard
