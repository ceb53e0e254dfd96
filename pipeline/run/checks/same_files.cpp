#include "pipeline/run/checks/same_files.hpp"

#include <optional>
#include <vector>

#include "core/base/threads/workers.hpp"
#include "core/formats/headers/stamped_files.hpp"

namespace reshard {
namespace {

/// The files that reading `files` opens.
std::set<std::uint32_t> stored_files(std::set<std::uint32_t> const& files,
                                     std::span<SourceView const> views, std::size_t first_view) {
  std::set<std::uint32_t> stored;
  for (std::uint32_t const file : files) {
    if (file < first_view) {
      stored.insert(file);
      continue;
    }
    for (std::uint32_t const one : files_of(views[file - first_view])) stored.insert(one);
  }
  return stored;
}

void check_same_file(Checkpoint const& source, FileSet& files, std::uint32_t file, int rank) {
  std::optional<FileStamp> now;
  auto const unseen = capture([&] { now = files.open(file)->file().stamp(); });
  if (unseen) throw unseen->in(fmt::format("rank {}", rank));
  if (!difference(source.stamps.taken[file], *now).empty())
    refuse_two_worlds(source.files[file], rank, *now, source.stamps.rank[file],
                      source.stamps.taken[file]);
}

}  // namespace

std::set<std::uint32_t> files_to_read(RoundTerms const& terms) {
  std::set<std::uint32_t> files;
  std::vector<int> const readers = terms.exchanging ? readers_of_files(terms) : std::vector<int>();
  CellRange const mine =
      terms.exchanging ? CellRange{0, terms.plan.cells.size()} : own_cells(terms);
  for (std::size_t i = mine.begin; i < mine.end; ++i)
    for (Region const& region : terms.plan.regions_of(terms.plan.cells[i]))
      if (readers.empty() || readers[region.src_file] == terms.rank) files.insert(region.src_file);
  return stored_files(files, terms.views, terms.source_files);
}

void check_same_files(Checkpoint const& source, FileSet& files, RoundTerms const& terms,
                      Comm const& comm) {
  if (comm.size() == 1) return;
  together(comm, [&] {
    auto const mine = files_to_read(terms);
    std::vector<std::uint32_t> const each(mine.begin(), mine.end());
    overlapped(each.size(),
               [&](std::size_t i) { check_same_file(source, files, each[i], comm.rank()); });
  });
}

}  // namespace reshard
