#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "pipeline/journal/journal_entries.hpp"
#include "pipeline/publication/work_account.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/stream/stream.hpp"
#include "stages/write/journal.hpp"
#include "stages/write/target_files.hpp"
#include "stages/write/unchanged_bytes.hpp"

namespace reshard {

/// Whether the digests of files are taken: of use where they are read back.
enum class FileSums { taken, not_taken };

/// A rank's work on a target, in sums: cells that were carried out, the CRC-32 of zip records, the
/// CRC-64 of files. In the end the ranks combine them. add_unread() and add() are the writing
/// thread's, once all that observe() was told of the round is over.
class TargetSums {
 public:
  /// `plan` is whole: what earlier runs did has not been taken out of it yet.
  /// `block_bytes`: of FileDigests.
  TargetSums(JobPlan const& plan, std::span<TargetLayout const> layouts, std::size_t source_records,
             FileSums file_sums, std::uint64_t block_bytes = 0);

  /// Bounds of the numbers of a journal of this target.
  JournalLimits const& limits() const { return limits_; }
  /// Adds what earlier runs did. Every rank knows its cells; its sums are added on one rank only,
  /// for the ranks combine them.
  void add_earlier(JournalEntry const& done, bool with_sums);

  /// Adds what is taken from a previous target before the first round, as add_earlier() does. What
  /// has been added to files() until here is no change that a round makes.
  void add_taken(JournalEntry const& taken, bool with_sums);

  /// Sees bytes that go to a target file. Any thread.
  void observe(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes);
  /// The same for bytes whose place in the sums of files is known: add_block() has it.
  void observe_unchanged(std::uint32_t file, std::uint64_t offset_bytes,
                         std::span<std::byte const> bytes);
  void add_block(UnchangedBlock const& block);
  /// Counts bytes of a target file that the plan leaves unread: no sum of what is written has them.
  void add_unread(CloneExtent const& extent);
  /// Adds a round that is written, and says by what it changed the sums.
  JournalEntry add(FinishedRound const& round);

  WorkAccount& account() { return account_; }
  RecordChecksums& records() { return records_; }
  FileDigests& files() { return files_; }
  FileDigests const& files() const { return files_; }

 private:
  JournalLimits limits_;
  WorkAccount account_;
  RecordChecksums records_;
  FileDigests files_;
  FileSums file_sums_;
  std::unique_ptr<std::mutex> observing_ = std::make_unique<std::mutex>();  ///< of account_
  std::vector<std::uint32_t> noted_records_;  ///< the sums as they stood after the last round
  std::vector<std::uint64_t> noted_files_;
};

}  // namespace reshard
