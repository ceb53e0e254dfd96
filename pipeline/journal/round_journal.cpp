#include "pipeline/journal/round_journal.hpp"

#include <utility>

#include "pipeline/journal/journal_entries.hpp"

namespace reshard {
namespace {

/// Syncs a file; when that fails, nobody trusts the journal any more.
std::function<void(std::uint32_t)> distrusting(JournalFolder const& folder,
                                               std::function<void(std::uint32_t)> sync) {
  return [folder, sync = std::move(sync)](std::uint32_t file) {
    auto const error = capture([&] { sync(file); });
    if (!error) return;
    folder.distrust();
    throw *error;
  };
}

}  // namespace

RoundJournal::RoundJournal(JournalFolder const& folder, Comm const& comm, Writing writing)
    : kept_(std::move(writing.kept)),
      writer_({.path = folder.rank_file(writing.run, comm.rank()),
               .ranks = static_cast<std::uint64_t>(comm.size()),
               .lockstep = writing.lockstep,
               .sync_file = distrusting(folder, std::move(writing.sync_file))}) {}

void RoundJournal::add(JournalEntry entry, std::span<Extent const> writes) {
  if (!kept_.empty()) entry.cells = in_whole_plan(entry.cells, kept_);
  writer_.add(entry, writes);
}

}  // namespace reshard
