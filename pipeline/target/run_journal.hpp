#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/transport/comm.hpp"
#include "pipeline/target/job_identity.hpp"
#include "stages/write/journal.hpp"

namespace reshard {

/// What earlier runs of a job have done to its target.
struct EarlierWork {
  std::uint64_t runs = 0;
  JournalEntry done;  ///< cells in order and joined, on every rank; the sums are on rank 0
};

/// The journal folder of a target, `.NAME.resume-TOKEN`, which stages/write/publish.hpp makes and
/// renames:
///
///   owner        the run that writes here
///   job          identity of the job, inode and device of the staging folder; written when all
///   files of the staging folder are there job.lost     the same after a sync has failed: nobody
///   goes on with what was written job.toml     the job, to say what has changed source       path
///   of the source, when a nightly job made the journal complete     every file of the staging
///   folder with size, times and inode: all was written and verified, a name is all that is missing
///   0002.base    what the runs before run 2 did, in one entry; the files of those runs are then
///   removed 0002-00007   the journal of rank 7 in run 2
///
/// Not collective unless it says so.
class RunJournal {
 public:
  explicit RunJournal(std::filesystem::path folder) : folder_(std::move(folder)) {}
  std::filesystem::path const& folder() const { return folder_; }

  /// Whether its records are of this staging folder, whatever its name is now.
  bool is_of(std::filesystem::path const& staging) const;
  /// Why the earlier run of a target cannot be gone on with, for a sentence; nothing when it can.
  /// `staging` is its staging folder.
  std::optional<std::string> obstacle(std::filesystem::path const& staging,
                                      JobIdentity const& identity) const;

  /// Notes what the first run of a job is, in the folder that is there. `nightly_source`: the path
  /// of a nightly job's source, else empty.
  void create(std::filesystem::path const& staging, JobIdentity const& identity,
              std::string const& nightly_source) const;

  /// Nobody goes on with what was written. For a write-back that failed: the system tells of it
  /// once, so that a later sync would find nothing wrong.
  void distrust() const;

  /// Notes that the staging folder is complete and verified, as it is now.
  void mark_complete(std::filesystem::path const& staging) const;
  /// Whether it was, and has not been touched since.
  bool is_complete(std::filesystem::path const& staging) const;

  /// What the numbers in entries must be below: a journal with any other number is not used.
  struct Limits {
    std::size_t cells = 0;
    std::size_t digests = 0;
    std::size_t records = 0;
    std::size_t files = 0;
    std::size_t sources = 0;  ///< zip records of the source
  };

  /// The files of the target, by their numbers.
  struct TargetFiles {
    std::function<void(std::uint32_t)> sync;  ///< makes what was written to a file durable
    std::function<void(std::span<HeldBytes const>)> write =
        nullptr;  ///< writes these bytes and makes them durable
  };
  /// Collective: what the earlier runs did, as far as it is certain. Files with rounds that no mark
  /// covers are then synced on every machine, bytes that were kept back are written, and the sum of
  /// it all becomes the base of this run. Entries that no mark covers count only on a local file
  /// system, when a rank of this job runs on the machine that wrote them, and that was not started
  /// again since.
  EarlierWork take_over(Comm const& comm, TargetFiles const& files, Limits const& limits);

  /// Begins the journal of this rank. `kept` are the numbers in the whole plan of the plan's cells.
  struct Writing {
    bool lockstep = false;
    std::vector<std::uint32_t> kept;  ///< empty: the plan is whole
    std::function<void(std::uint32_t)> sync_file;
  };
  void begin(Comm const& comm, Writing writing);

  /// Adds a round; `entry.cells` are of the plan as it is carried out. From one thread.
  void add(JournalEntry entry, std::span<Extent const> writes);
  /// No more rounds. Throws what the last sync met.
  void end();

 private:
  std::filesystem::path rank_file(std::uint64_t run, int rank) const;
  std::filesystem::path base_file(std::uint64_t run) const;
  std::vector<std::optional<Journal>> ranks_of(std::uint64_t run, Limits const& limits) const;
  EarlierWork read(std::span<std::string const> boots, Limits const& limits) const;

  std::filesystem::path folder_;
  std::uint64_t run_ = 0;
  std::vector<std::uint32_t> kept_;
  std::unique_ptr<JournalWriter> writer_;
};

/// Collective: each of these files is synced by one rank of every machine, for what a machine has
/// in its cache no other can sync.
void sync_on_every_machine(Comm const& comm, std::set<std::uint32_t> const& files,
                           std::function<void(std::uint32_t)> const& sync);

/// Combines entries: cells sorted and joined, sums combined, each in its way, the rest put
/// together. An entry with cells that an earlier one has does not count: it says nothing new.
JournalEntry joined(std::span<JournalEntry const> entries);

/// Which entries of the journals of one run count: all that are certain, and with lockstep only
/// rounds that every rank has. Only those that no mark covers still name the files they have
/// written: these are to be synced. `alive` says whether what was written under this boot is still
/// there.
std::vector<JournalEntry> certain_entries(std::span<std::optional<Journal> const> ranks,
                                          std::function<bool(std::string const&)> const& alive);

/// Whether every number in the journal is below its limit, and every range of cells in order.
bool keeps_limits(Journal const& journal, RunJournal::Limits const& limits);

/// Whether files of a file system of this type (statfs) are on this machine alone, so that nothing
/// but its end can lose what was written: a client of a network file system may lose it, when its
/// server throws it out.
bool is_local_file_system(std::uint64_t type);

}  // namespace reshard
