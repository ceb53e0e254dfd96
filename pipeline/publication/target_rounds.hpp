#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/io/file_set.hpp"
#include "core/plan/cells/rank_parts.hpp"
#include "pipeline/journal/part_files.hpp"
#include "pipeline/journal/round_journal.hpp"
#include "pipeline/publication/begin_target.hpp"
#include "stages/stream/stream.hpp"
#include "stages/stream/trace.hpp"
#include "stages/verify/scans/early_scan.hpp"
#include "stages/write/edge_bytes.hpp"
#include "stages/write/extent_writer.hpp"

namespace reshard {

/// The rounds of a job as a journal sees them.
struct RoundNumbers {
  bool lockstep = false;            ///< they are numbered alike on all ranks
  std::vector<std::uint32_t> kept;  ///< the numbers in the whole plan of the plan's cells; empty:
                                    ///< the plan is whole
  /// The parts that any rank may do; nothing: each does its own cells.
  std::optional<RankParts> parts = std::nullopt;
};

/// The files of a target while rounds are written to them, and the journal of those rounds. What is
/// there stays for the next run from now on. add_unread() and note() are the writing thread's.
class TargetRounds {
 public:
  /// All arguments outlive it. `trace` gets the time of each file that is read back; null where
  /// none is taken. Collective.
  TargetRounds(TargetTask const& task, StagedTarget& target, BegunTarget& begun,
               RoundNumbers numbers, Trace* trace = nullptr);

  FileSet& files() { return *begun_.files; }
  /// Takes what is kept back; null where nothing is.
  EdgeBytes* edges() { return edges_ ? &*edges_ : nullptr; }

  /// The parts of the plan's cells: one for each rank where none are handed out.
  RankParts const& parts() const { return parts_; }
  /// Where ranks say which parts they do; null where none are handed out.
  PartFiles* claims() { return claims_ ? &*claims_ : nullptr; }

  /// Finds what need not be written, and counts it.
  UnchangedSource unchanged();
  /// Bytes that were not written because a previous target has them, by place: of this run, and on
  /// rank 0 of earlier ones.
  std::vector<FileSpan> kept() const;

  /// Sees what this rank writes. Any thread.
  void observe(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes);
  /// Counts what is not read. `copied`: it could not be cloned, and went through memory.
  void add_unread(CloneExtent const& extent, bool copied);
  /// Whether anything that the plan leaves unread has been copied by this rank.
  bool has_copied_unread() const { return copied_unread_; }
  /// Notes a round as done.
  void note(FinishedRound const& round);
  /// A write has failed.
  void distrust_lost_writes() const { target_.distrust_lost_writes(); }
  /// Reads files back while others are written; null where none can be.
  EarlyScan* early() { return early_.get(); }
  /// The digest of the whole target as work on its files: made once, by who asks first. Any thread.
  std::shared_ptr<DigestWork const> digest_work();
  /// All files are read back: lets go of what that took. Pre: end() was called.
  void forget_reading_back();
  /// Called for every file that is read back; may be empty.
  std::function<void(ScannedFile const&)> const& scanned() const { return scanned_; }
  /// No more rounds, and no more files are read back early: what was written to files that other
  /// ranks complete is synced.
  void settle();
  /// All files are complete and synced: ends the journal and closes them. Throws what the system
  /// has to say to that.
  void end();

 private:
  void begin_journal(TargetTask const& task, RoundNumbers numbers);
  void begin_edges(TargetTask const& task, std::optional<RankParts> parts);
  void begin_reading_back(TargetTask const& task);
  void read_back_whole(FinishedRound const& round);
  bool is_owner(std::uint32_t file) const { return begun_.owners[file] == rank_; }

  StagedTarget& target_;
  BegunTarget& begun_;
  int rank_;
  JobPlan const& plan_;
  RankParts parts_;
  bool copied_unread_ = false;
  std::optional<UnchangedBytes> unchanged_;
  std::vector<FileSpan> kept_;
  // Of targets that have a journal:
  std::optional<EdgeBytes> edges_;
  std::optional<PartFiles> claims_;
  std::optional<RoundJournal> journal_;  ///< goes before the files, which it syncs to its end
  std::mutex digest_work_mutex_;
  std::shared_ptr<DigestWork const> digest_work_;
  std::function<void(ScannedFile const&)> scanned_;
  std::unique_ptr<EarlyScan> early_;  ///< likewise
};

/// By the plan's numbers.
std::vector<std::filesystem::path> paths_of(std::span<TargetLayout const> layouts);

/// Where libhdf5 has written: what each machine has of the files reaches the device. Collective.
void sync_everywhere(std::span<TargetLayout const> layouts, Comm const& comm);

}  // namespace reshard
