#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stages/write/journal.hpp"

namespace reshard {

/// Combines entries: cells sorted and joined, sums combined, each in its way, the rest put
/// together. An entry with cells that an earlier one has does not count: it says nothing new.
JournalEntry joined(std::span<JournalEntry const> entries);

/// Which entries of the journals of one run count: all that are certain, and with lockstep only
/// rounds that every rank has. Only those that no mark covers still name the files they have
/// written: these are to be synced. `alive` says whether what was written under this boot is still
/// there.
std::vector<JournalEntry> certain_entries(std::span<std::optional<Journal> const> ranks,
                                          std::function<bool(std::string const&)> const& alive);

/// Bounds of the numbers in entries: a journal with any other number is not used.
struct JournalLimits {
  std::size_t cells = 0;
  std::size_t digests = 0;
  std::size_t records = 0;
  std::vector<std::uint64_t> file_bytes = {};  ///< their sizes: so many files
  std::size_t file_sums = 0;
  std::size_t sources = 0;  ///< zip records of the source
};

/// Whether every number in the journal is below its limit, and every range of cells in order.
bool keeps_limits(Journal const& journal, JournalLimits const& limits);

/// Ranges of cells of a plan, in numbers of the whole plan; cells that follow each other there are
/// one range. `kept`: the numbers in the whole plan of the plan's cells.
std::vector<CellRange> in_whole_plan(std::span<CellRange const> ranges,
                                     std::span<std::uint32_t const> kept);

}  // namespace reshard
