#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>

#include "core/transport/comm.hpp"
#include "pipeline/journal/journal_entries.hpp"
#include "pipeline/journal/journal_folder.hpp"

namespace reshard {

/// The work of earlier runs of a job on its target.
struct EarlierWork {
  std::uint64_t runs = 0;
  JournalEntry done;  ///< cells in order and joined, on every rank; the sums are on rank 0
};

/// How the files of the target are treated, by their numbers.
struct JournaledFiles {
  std::function<void(std::uint32_t)> sync;  ///< makes what was written to a file durable
  std::function<void(std::span<HeldBytes const>)> write =
      nullptr;  ///< writes these bytes and makes them durable
};

/// The work of the earlier runs, as far as it is certain. Looks only. `boots`: of the machines of
/// this job's ranks. Not collective.
EarlierWork earlier_work(JournalFolder const& folder, std::span<std::string const> boots,
                         JournalLimits const& limits);

/// The same for a run that resumes them. Files with rounds that no mark covers are
/// then synced on every machine, bytes that were kept back are written, and the sum of it all
/// becomes the base of this run. Entries that no mark covers count only on a local file system,
/// when a rank of this job runs on the machine that wrote them, and that was not started again
/// since. Collective.
EarlierWork take_over_work(JournalFolder const& folder, Comm const& comm,
                           JournaledFiles const& files, JournalLimits const& limits);

/// Each of these files is synced by one rank of every machine, for what a machine has in its cache
/// no other can sync. Collective.
void sync_on_every_machine(Comm const& comm, std::set<std::uint32_t> const& files,
                           std::function<void(std::uint32_t)> const& sync);

/// Whether files of a file system of this type (statfs) are on this machine alone, so that nothing
/// but its end can lose what was written: a client of a network file system may lose it, when its
/// server throws it out.
bool is_local_file_system(std::uint64_t type);

}  // namespace reshard
