#include "pipeline/publication/target_rounds.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/capture.hpp"
#include "core/base/range.hpp"
#include "core/base/threads/workers.hpp"
#include "pipeline/publication/shared_edges.hpp"
#include "pipeline/records/sums_file.hpp"
#include "pipeline/records/target_check.hpp"

namespace reshard {
namespace {

// Memory that a rank holds besides that of its rounds to read files back meanwhile.
constexpr std::uint64_t memory_part = 8;       ///< of run.memory
constexpr std::size_t threads_for_sha256 = 4;  ///< of a rank: the read-back has one for it alone
constexpr std::uint64_t least_memory_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t most_memory_bytes = std::uint64_t{16} << 20;

}  // namespace

TargetRounds::TargetRounds(TargetTask const& task, StagedTarget& target, BegunTarget& begun,
                           RoundNumbers numbers, Trace* trace)
    : target_(target),
      begun_(begun),
      rank_(task.comm.rank()),
      plan_(task.plan),
      parts_(task.plan.plan, task.comm.size()) {
  target_.keep(true);
  if (trace != nullptr)
    scanned_ = [trace](ScannedFile const& file) {
      trace->add({"read back file", file.file, trace->seconds(file.begin), trace->seconds(file.end),
                  file.bytes});
    };
  if (task.previous.is_usable())
    unchanged_.emplace(task.previous.files, reuse_block_bytes, task.threads);
  if (target_.is_journaled()) begin_journal(task, std::move(numbers));
  together(task.comm, [&] { begin_reading_back(task); });
}

std::shared_ptr<DigestWork const> TargetRounds::digest_work() {
  std::lock_guard const lock(digest_work_mutex_);
  if (!digest_work_) digest_work_ = std::make_shared<DigestWork const>(target_digest_work(plan_));
  return digest_work_;
}

void TargetRounds::forget_reading_back() {
  early_.reset();
  digest_work_.reset();
}

/// Bytes that are cloned or taken over, and not read back at all, are known only when all ranks
/// have ended.
void TargetRounds::begin_reading_back(TargetTask const& task) {
  if (!target_.is_journaled() || task.spec.run.verify != VerifyChoice::written ||
      !task.plan.unread.spans.empty() || task.previous.is_usable())
    return;
  std::uint64_t const memory_bytes =
      std::clamp(task.spec.run.memory_bytes / memory_part, least_memory_bytes, most_memory_bytes);
  early_ = std::make_unique<EarlyScan>(
      EarlyScan::Parts{.files = paths_of(begun_.layouts),
                       .work = [this] { return digest_work(); },
                       .options = {.memory_bytes = memory_bytes,
                                   .file_hashes = true,
                                   .sha256 = takes_sums(task.spec),
                                   .sha256_beside = task.threads >= threads_for_sha256,
                                   .past_cache = true,
                                   .scanned = scanned_}});
}

/// Hands over the files that this round has completed. Those with other contents until all is
/// written are for the end: what is around their tensors needs what other ranks have read. So are
/// those of other owners, which after an earlier run have written their headers. What was kept back
/// of such a file is all this rank's, and is written first.
void TargetRounds::read_back_whole(FinishedRound const& round) {
  std::set<std::uint32_t> files;
  for (Extent const& write : round.writes) files.insert(write.file);
  for (std::uint32_t const file : files) {
    TargetLayout const& layout = begun_.layouts[file];
    if (!is_owner(file) || !begun_.sums.account().is_whole_here(file) ||
        !layout.frame->skeleton().empty())
      continue;
    early_->add(file, [this, file, &layout, sums = begun_.sums.records().of_file(file),
                       held = edges_->of_file(file)] {
      auto const error = capture([&] {
        finish_target_file(*begun_.files, file, layout, frame_of(layout, sums, {}), held);
      });
      if (!error) return;
      distrust_lost_writes();  // at once: where ranks exchange, an error ends the process
      throw *error;
    });
  }
}

/// Cells are not handed out where parts share so many pages that not all can be kept back.
void TargetRounds::begin_edges(TargetTask const& task, std::optional<RankParts> parts) {
  if (parts && !parts->are_whole()) edges_ = find_edges(task.plan.plan, *parts, task.comm);
  if (edges_) {
    parts_ = *std::move(parts);
    claims_.emplace(target_.journal(), begun_.earlier ? begun_.earlier->runs : 0);
  } else {
    edges_ = find_edges(task.plan.plan, task.comm);
  }
}

void TargetRounds::begin_journal(TargetTask const& task, RoundNumbers numbers) {
  begin_edges(task, std::move(numbers.parts));
  together(task.comm, [&] {
    journal_.emplace(
        target_.journal(), task.comm,
        RoundJournal::Writing{.run = begun_.earlier ? begun_.earlier->runs : 0,
                              .lockstep = numbers.lockstep,
                              .kept = std::move(numbers.kept),
                              .sync_file = [this](std::uint32_t file) { files().sync(file); }});
  });
}

void TargetRounds::observe(std::uint32_t file, std::uint64_t offset_bytes,
                           std::span<std::byte const> bytes) {
  begun_.sums.observe(file, offset_bytes, bytes);
}

void TargetRounds::add_unread(CloneExtent const& extent, bool copied) {
  begun_.sums.add_unread(extent);
  copied_unread_ = copied_unread_ || copied;
}

void TargetRounds::note(FinishedRound const& round) {
  JournalEntry entry = begun_.sums.add(round);
  if (unchanged_) entry.kept = unchanged_->take_kept();
  kept_.insert(kept_.end(), entry.kept.begin(), entry.kept.end());
  if (!journal_) return;
  entry.held = edges_->take_new();
  for (Extent const& write : round.writes) entry.unsynced.insert(write.file);
  journal_->add(std::move(entry), round.writes);
  if (early_) {
    early_->check();
    read_back_whole(round);
  }
}

UnchangedSource TargetRounds::unchanged() {
  if (!unchanged_) return {};
  return {&*unchanged_,
          [this](std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes) {
            begun_.sums.observe_unchanged(file, offset_bytes, bytes);
          },
          [this](UnchangedBlock const& block) { begun_.sums.add_block(block); }};
}

std::vector<FileSpan> TargetRounds::kept() const {
  std::vector<FileSpan> all = kept_;
  if (begun_.earlier)
    all.insert(all.end(), begun_.earlier->done.kept.begin(), begun_.earlier->done.kept.end());
  return united(std::move(all));
}

void TargetRounds::settle() {
  if (early_) early_->end();
  std::vector<std::uint32_t> shared = files().unsynced();
  std::erase_if(shared, [&](std::uint32_t file) { return is_owner(file); });
  overlapped(shared.size(), [&](std::size_t i) { files().sync(shared[i]); });
}

void TargetRounds::end() {
  if (journal_) journal_->end();
  files().close();
}

std::vector<std::filesystem::path> paths_of(std::span<TargetLayout const> layouts) {
  std::vector<std::filesystem::path> paths;
  for (TargetLayout const& layout : layouts) paths.push_back(layout.path);
  return paths;
}

void sync_everywhere(std::span<TargetLayout const> layouts, Comm const& comm) {
  std::set<std::uint32_t> all;
  for (std::uint32_t f = 0; f < layouts.size(); ++f) all.insert(f);
  sync_on_every_machine(comm, all, [&](std::uint32_t f) { sync_target_file(layouts[f]); });
}

}  // namespace reshard
