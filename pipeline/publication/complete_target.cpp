#include "pipeline/publication/complete_target.hpp"

#include <utility>

#include "core/base/threads/workers.hpp"
#include "pipeline/publication/integrity_file.hpp"
#include "pipeline/publication/shared_edges.hpp"
#include "pipeline/publication/small_files.hpp"
#include "pipeline/records/sums_file.hpp"

namespace reshard {
namespace {

/// Writes all around the payloads, and the payload that ranks had kept back. Files of `finished`
/// are complete already.
void finish_files(BegunTarget& begun, std::span<std::vector<FileSegment> const> held,
                  std::span<std::uint64_t const> digests, std::vector<bool> const& finished,
                  Comm const& comm) {
  std::vector<std::uint32_t> const mine = files_of(begun, comm.rank());
  overlapped(mine.size(), [&](std::size_t i) {
    std::uint32_t const f = mine[i];
    TargetLayout const& layout = begun.layouts[f];
    std::vector<FileSegment> const frame =
        frame_of(layout, begun.sums.records().of_file(f), digests);
    if (!finished[f]) finish_target_file(*begun.files, f, layout, frame, held[f]);
    for (FileSegment const& segment : frame)
      begun.sums.files().add(f, segment.offset_bytes, std::as_bytes(std::span(segment.bytes)));
  });
}

}  // namespace

CompletedTarget complete_target(TargetTask const& task, StagedTarget const& target,
                                BegunTarget& begun, TargetRounds& rounds,
                                std::vector<std::uint64_t> digests) {
  Comm const& comm = task.comm;
  TargetSums& sums = begun.sums;
  together(comm, [&] { rounds.settle(); });
  sums.account().gather(comm);
  together(comm, [&] { sums.account().expect_whole(task.plan); });
  auto const held = gathered_edges(
      rounds.edges(), begun.layouts.size(),
      [&](std::uint32_t file) { return begun.owners[file] == comm.rank(); }, comm);
  CompletedTarget completed;
  completed.digests = std::move(digests);
  bool const unsure = begun.earlier.has_value() || rounds.has_copied_unread();
  completed.shares_unread = !task.plan.unread.spans.empty() && comm.max(unsure ? 1 : 0) == 0;
  if (begun.earlier && comm.rank() == 0 && !completed.digests.empty())
    for (SumShare const& one : begun.earlier->done.digests)
      completed.digests[one.number] ^= one.value;
  comm.xor_all(sums.records().shares());
  comm.xor_all(completed.digests);
  for (std::size_t t = 0; t < task.plan.plan.unread.size(); ++t)
    if (task.plan.plan.unread[t]) completed.digests[t] = task.plan.recorded[t];
  TakenTensors const& taken = task.previous.taken;
  for (std::size_t t = 0; t < taken.tensors.size(); ++t)
    if (taken.tensors[t]) completed.digests[t] = taken.digests[t];
  std::vector<bool> const finished = begun_early(comm, rounds.early(), begun.layouts.size());
  together(comm, [&] {
    finish_files(begun, held, completed.digests, finished, comm);
    rounds.end();
  });
  comm.xor_all(sums.files().shares());
  if (task.previous.is_usable()) completed.reused = reuse_files(task, begun, rounds.kept());
  together(comm, [&] {
    if (comm.rank() == 0) completed.small_files = write_small_files(task.plan, target.folder());
  });
  if (begun.integrity && !takes_sums(task.spec))
    for (FileRecord& one :
         write_integrity(begun.layouts.front().path.parent_path(), target.folder(), comm))
      completed.small_files.push_back(std::move(one));
  return completed;
}

}  // namespace reshard
