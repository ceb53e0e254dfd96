#include "pipeline/target/target_rounds.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/capture.hpp"
#include "core/base/range.hpp"
#include "core/io/io_engines.hpp"
#include "core/plan/schedule.hpp"
#include "pipeline/target/shared_edges.hpp"
#include "pipeline/target/sums_file.hpp"
#include "pipeline/target/target_check.hpp"

namespace reshard {
namespace {

// What a rank holds besides the memory of its rounds to read files back meanwhile.
constexpr std::uint64_t memory_part = 8;  ///< of run.memory
constexpr std::uint64_t least_memory_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t most_memory_bytes = std::uint64_t{16} << 20;

/// Those that this rank writes something of.
std::vector<bool> files_of_rank(Plan const& plan, std::size_t files, Comm const& comm) {
  std::vector<bool> mine(files);
  CellRange const cells = cells_of_rank(plan, comm.rank(), comm.size());
  for (std::size_t c = cells.begin; c < cells.end; ++c) {
    Cell const& cell = plan.cells[c];
    for (std::size_t r = 0; r < cell.region_count; ++r)
      mine[plan.regions[cell.first_region + r].to] = true;
  }
  return mine;
}

}  // namespace

TargetRounds::TargetRounds(TargetTask const& task, StagedTarget& target, BegunTarget& begun,
                           RoundNumbers numbers, Trace* trace)
    : target_(target),
      begun_(begun),
      files_(paths_of(begun.layouts), FileSet::Access::write, FileSet::default_open_limit,
             make_file_io(name(task.spec.run.io))) {
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

/// What is cloned or taken over, and not read back at all, is known only when all ranks have ended.
void TargetRounds::begin_reading_back(TargetTask const& task) {
  if (!target_.is_journaled() || task.spec.run.verify != VerifyChoice::written ||
      !task.plan.unread.spans.empty() || task.previous.is_usable())
    return;
  std::uint64_t const memory_bytes =
      std::clamp(task.spec.run.memory_bytes / memory_part, least_memory_bytes, most_memory_bytes);
  own_files_ = files_of_rank(task.plan.plan, task.plan.files.size(), task.comm);
  auto const work = [this, &plan = task.plan] {
    DigestWork made = target_digest_work(plan);
    std::erase_if(made.regions,
                  [this](ShareRegion const& region) { return !own_files_[region.src_file]; });
    return made;
  };
  early_ = std::make_unique<EarlyScan>(EarlyScan::Parts{.files = paths_of(begun_.layouts),
                                                        .work = work,
                                                        .options = {.memory_bytes = memory_bytes,
                                                                    .file_hashes = true,
                                                                    .sha256 = takes_sums(task.spec),
                                                                    .past_cache = true,
                                                                    .scanned = scanned_}});
}

/// Hands over the files that this round has completed. Those with other contents until all is
/// written are for the end: what is around their tensors needs what other ranks have read.
void TargetRounds::read_back_whole(FinishedRound const& round) {
  std::set<std::uint32_t> files;
  for (Extent const& write : round.writes) files.insert(write.file);
  for (std::uint32_t const file : files) {
    TargetLayout const& layout = begun_.layouts[file];
    if (!own_files_[file] || !begun_.sums.account().is_whole_here(file) ||
        !layout.frame->skeleton().empty() || (edges_ && edges_->holds(file)))
      continue;
    early_->add(file, [this, file, &layout,
                       frame = frame_of(layout, begun_.sums.records().of_file(file), {})] {
      auto const error = capture([&] {
        files_.sync(file);
        finish_target_file(layout, frame);
      });
      if (!error) return;
      distrust_lost_writes();  // at once: where ranks exchange, an error ends the process
      throw *error;
    });
  }
}

void TargetRounds::begin_journal(TargetTask const& task, RoundNumbers numbers) {
  edges_.emplace(find_edges(task.plan.plan, task.comm));
  together(task.comm, [&] {
    journal_.emplace(
        target_.journal(), task.comm,
        RoundJournal::Writing{.run = begun_.earlier ? begun_.earlier->runs : 0,
                              .lockstep = numbers.lockstep,
                              .kept = std::move(numbers.kept),
                              .sync_file = [this](std::uint32_t file) { files_.sync(file); }});
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

void TargetRounds::end() {
  if (early_) early_->end();
  if (journal_) journal_->end();
  files_.close();
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
