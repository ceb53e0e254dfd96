#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/transport/comm.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/stream/stream.hpp"
#include "stages/write/journal.hpp"

namespace reshard {

/// The executed part of a plan, counted where it happened: cells, bytes written to each file, bytes
/// of each logical tensor that digests were taken of, and the sums of the source's zip records.
/// Digests alone do not see a cell that no rank did: its bytes are missing on both sides.
class WorkAccount {
 public:
  /// `plan` is whole: what earlier runs did has not been taken out of it yet.
  WorkAccount(JobPlan const& plan, std::size_t source_records);

  /// Adds bytes that went to a target file; from one thread at a time.
  void add_written(std::uint32_t file, std::uint64_t bytes);
  /// Adds a round that is written, and says what it did as a journal keeps it; from the writing
  /// thread.
  JournalEntry add(FinishedRound const& round);
  /// Adds what earlier runs did. Every rank knows its cells; its sums are added on one rank only.
  void add_earlier(JournalEntry const& done);

  /// Whether this rank alone has written all of a file's tensors, in this run. Before gather().
  bool is_whole_here(std::uint32_t file) const {
    return planned_[file] > 0 && own_[file] == planned_[file];
  }

  /// Adds up over all ranks. Collective.
  void gather(Comm const& comm);
  /// After gather(): an Error of kind self_check names what was not done once, or was done twice.
  /// `plan` is the one that was carried out, the names are those of its tensors and files.
  void expect_whole(JobPlan const& plan) const;

  /// After gather(): by number of the record.
  std::span<std::uint32_t const> record_crc32() const { return record_crc32_; }
  std::span<std::uint64_t const> record_covered() const { return record_covered_; }

 private:
  void expect_cells(JobPlan const& plan) const;

  std::size_t whole_cells_;
  std::vector<std::uint64_t> planned_;  ///< bytes by target file
  std::size_t earlier_cells_ = 0;
  std::vector<CellRange> cells_;  ///< done now; after gather() by any rank, sorted
  std::vector<std::uint64_t> written_;
  std::vector<std::uint64_t> own_;  ///< of them, by this rank in this run
  std::vector<std::uint64_t> digested_;
  std::vector<std::uint32_t> record_crc32_;
  std::vector<std::uint64_t> record_covered_;
  std::map<std::uint32_t, std::uint64_t> just_written_;  ///< since the last round
};

}  // namespace reshard
