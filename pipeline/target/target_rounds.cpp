#include "pipeline/target/target_rounds.hpp"

#include <set>
#include <utility>

#include "core/base/workers.hpp"
#include "pipeline/target/shared_edges.hpp"

namespace reshard {

TargetRounds::TargetRounds(TargetTask const& task, StagedTarget& target, BegunTarget& begun,
                           RoundNumbers numbers)
    : target_(target), begun_(begun), rank_(task.comm.rank()) {
  target_.keep(true);
  if (target_.is_journaled()) begin_journal(task, std::move(numbers));
}

void TargetRounds::begin_journal(TargetTask const& task, RoundNumbers numbers) {
  edges_.emplace(find_edges(task.plan.plan, task.comm));
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
  if (!journal_) return;
  entry.held = edges_->take_new();
  for (Extent const& write : round.writes) entry.unsynced.insert(write.file);
  journal_->add(std::move(entry), round.writes);
}

void TargetRounds::settle() {
  std::vector<std::uint32_t> shared = files().unsynced();
  std::erase_if(shared, [&](std::uint32_t file) { return begun_.owners[file] == rank_; });
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
