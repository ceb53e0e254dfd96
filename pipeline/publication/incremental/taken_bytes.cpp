#include "pipeline/publication/incremental/taken_bytes.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "pipeline/publication/incremental/reuse_files.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t most_read_bytes = std::uint64_t{1} << 20;

void add_file(std::uint32_t f, std::span<FileSpan const> places, PreviousFile const& previous,
              FileDigests& sums) {
  File const file = open_previous(previous);
  BlockParts const parts =
      in_blocks(places, reuse_block_bytes, static_cast<std::uint64_t>(previous.stamp.bytes));
  for (FileSpan const& span : parts.blocks)
    for (std::uint64_t at = span.begin; at < span.end; at += reuse_block_bytes)
      sums.add_block(f, at, previous.blocks[at / reuse_block_bytes]);
  std::vector<std::byte> buffer(parts.rest.empty() ? 0 : most_read_bytes);
  for (FileSpan const& span : parts.rest)
    for (std::uint64_t at = span.begin; at < span.end;) {
      auto const bytes =
          std::span(buffer).first(std::min<std::uint64_t>(span.end - at, buffer.size()));
      file.read_at(at, bytes);
      sums.add(f, at, bytes);
      at += bytes.size();
    }
}

}  // namespace

std::vector<CellRange> begin_taken(TargetTask const& task, BegunTarget& begun) {
  TakenTensors const& taken = task.previous.taken;
  if (taken.empty()) return {};
  JournalEntry work;
  together(task.comm, [&] {
    auto const ranks = static_cast<std::uint32_t>(task.comm.size());
    auto const rank = static_cast<std::uint32_t>(task.comm.rank());
    for (auto first = taken.places.begin(); first != taken.places.end();) {
      std::uint32_t const f = first->file;
      auto const last = std::find_if(first, taken.places.end(),
                                     [&](FileSpan const& place) { return place.file != f; });
      if (f % ranks == rank) add_file(f, {first, last}, task.previous.files[f], begun.sums.files());
      first = last;
    }
    work = work_of_taken(task.plan, taken);
    begun.sums.add_taken(work, rank == 0);
  });
  return work.cells;
}

}  // namespace reshard
