#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/transport/comm.hpp"
#include "pipeline/journal/journal_folder.hpp"
#include "stages/write/journal.hpp"

namespace reshard {

/// The journal of one rank in one run, while rounds are written.
class RoundJournal {
 public:
  struct Writing {
    std::uint64_t run = 0;  ///< how many runs there were before
    bool lockstep = false;
    std::vector<std::uint32_t> kept;  ///< the numbers in the whole plan of the plan's cells; empty:
                                      ///< the plan is whole
    std::function<void(std::uint32_t)> sync_file;
  };
  /// Makes the file. A sync that fails later leaves a journal that nobody goes on with.
  RoundJournal(JournalFolder const& folder, Comm const& comm, Writing writing);

  /// Adds a round; `entry.cells` are of the plan as it is carried out. From one thread.
  void add(JournalEntry entry, std::span<Extent const> writes);
  /// No more rounds. Throws what the last sync met.
  void end() { writer_.end(); }

 private:
  std::vector<std::uint32_t> kept_;
  JournalWriter writer_;
};

}  // namespace reshard
