#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/transport/comm.hpp"
#include "pipeline/job_identity.hpp"
#include "stages/write/journal.hpp"

namespace reshard {

/// What earlier runs of a job have done to its target.
struct EarlierWork {
  std::uint64_t runs = 0;
  JournalEntry done;  ///< cells in order and joined, on every rank; the sums are on rank 0
};

/// The file of a nightly job's journal that names its source.
inline constexpr std::string_view journal_source_name = "source";

/// The journal folder of a target, `.NAME.resume`:
///
///   job          identity of the job, inode of the staging folder; written when the staging folder is complete
///   job.lost     the same after a sync has failed: nobody goes on with what was written
///   job.toml     the job, to say what has changed
///   source       path of the source, when a nightly job made the journal
///   0002.base    what the runs before run 2 did, in one entry; the files of those runs are then removed
///   0002-00007   the journal of rank 7 in run 2
///
/// Not collective unless it says so.
class RunJournal {
 public:
  explicit RunJournal(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Why the earlier run of a target cannot be gone on with, for a sentence; nothing when it can. `staging` is its staging folder.
  std::optional<std::string> obstacle(std::filesystem::path const& staging, JobIdentity const& identity) const;

  /// Makes the folder anew for a first run. `nightly_source`: the path of a nightly job's source, else empty.
  void create(std::filesystem::path const& staging, JobIdentity const& identity, std::string const& nightly_source) const;

  /// Nobody goes on with what was written. For a write-back that failed: the system tells of it once, so that a later sync would find nothing wrong.
  void distrust() const;

  /// The files of the target, for those who sync them.
  struct TargetFiles {
    std::size_t count = 0;
    std::function<void(std::uint32_t)> sync;  ///< makes what was written to a file durable, by its number
  };
  /// Collective: what the earlier runs did, as far as it is certain. Every file is then synced on every machine, and the sum of it all becomes the
  /// base of this run. Entries that no mark covers count only when a rank of this job runs on the machine that wrote them, and that was not started
  /// anew since.
  EarlierWork take_over(Comm const& comm, TargetFiles const& files);

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
  std::vector<std::optional<Journal>> ranks_of(std::uint64_t run) const;
  EarlierWork read(std::span<std::string const> boots) const;

  std::filesystem::path folder_;
  std::uint64_t run_ = 0;
  std::vector<std::uint32_t> kept_;
  std::unique_ptr<JournalWriter> writer_;
};

/// Combines entries: cells sorted and joined, sums combined, each in its way. An entry with cells that an earlier one has does not count: it says
/// nothing new.
JournalEntry joined(std::span<JournalEntry const> entries);

/// Which entries of the journals of one run count: all that are certain, and with lockstep only rounds that every rank has.
/// `alive` says whether what was written under this boot is still there.
std::vector<JournalEntry> certain_entries(std::span<std::optional<Journal> const> ranks, std::function<bool(std::string const&)> const& alive);

}  // namespace reshard
