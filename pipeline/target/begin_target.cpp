#include "pipeline/target/begin_target.hpp"

#include <map>
#include <utility>

#include "core/base/file.hpp"
#include "core/transport/in_turn.hpp"
#include "pipeline/target/integrity_file.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::vector<TargetLayout> layouts_in(fs::path const& staging, JobPlan const& plan) {
  std::vector<TargetLayout> layouts;
  for (TargetFile const& file : plan.files)
    layouts.push_back({staging / file.path, file.size_bytes, file.frame});
  return layouts;
}

/// What ranks of an earlier run had kept back when it ended.
void write_held(std::span<TargetLayout const> layouts, std::span<HeldBytes const> held) {
  std::map<std::uint32_t, std::vector<FileSegment>> by_file;
  for (HeldBytes const& one : held) {
    auto const& [offset, bytes] = one.segment;
    std::uint64_t const size = layouts[one.file].size_bytes;
    if (offset > size || bytes.size() > size - offset)
      fail(
          ErrorKind::io,
          "{}: the journal has {} bytes for offset {}, the file ends after {}. Run again with --fresh.",
          layouts[one.file].path.string(), bytes.size(), offset, size);
    by_file[one.file].push_back(one.segment);
  }
  for (auto const& [number, segments] : by_file) {
    File file = File::open_for_writing(layouts[number].path);
    for (FileSegment const& segment : segments)
      file.write_at(segment.offset_bytes, std::as_bytes(std::span(segment.bytes)));
    file.sync();
    file.close();
  }
}

EarlierWork take_over(TargetTask const& task, StagedTarget const& target, BegunTarget& begun) {
  JournaledFiles const files = {
      .sync = [&](std::uint32_t f) { sync_target_file(begun.layouts[f]); },
      .write = [&](auto const& held) { write_held(begun.layouts, held); }};
  EarlierWork earlier = take_over_work(target.journal(), task.comm, files, begun.sums.limits());
  begun.sums.add_earlier(earlier.done, task.comm.rank() == 0);
  return earlier;
}

}  // namespace

BegunTarget begin_target(TargetTask const& task, ClaimedTarget const& claimed) {
  Comm const& comm = task.comm;
  StagedTarget const& target = claimed.target;
  auto layouts = layouts_in(target.folder(), task.plan);
  auto const file_sums =
      task.spec.run.verify == VerifyChoice::written ? FileSums::taken : FileSums::not_taken;
  TargetSums sums(task.plan, layouts, task.source.records.size(), file_sums,
                  task.previous.records ? reuse_block_bytes : 0);
  BegunTarget begun{std::move(layouts), std::move(sums), std::nullopt};
  bool const going_on = claimed.earlier == EarlierTarget::part;
  together(comm, [&] {
    for_each_in_turn(comm, begun.layouts.size(), [&](std::size_t f) {
      going_on ? reopen_target_file(begun.layouts[f]) : create_target_file(begun.layouts[f]);
    });
  });
  if (going_on) {
    begun.earlier = take_over(task, target, begun);
  } else if (target.is_journaled()) {
    together(comm, [&] {
      if (comm.rank() == 0) note_job(task, claimed);
    });
  }
  begun.integrity = wants_integrity(task);
  return begun;
}

void note_job(TargetTask const& task, ClaimedTarget const& claimed) {
  bool const nightly = claimed.source_record.find("nightly") != nullptr;
  claimed.target.journal().create(claimed.target.folder(), task.identity,
                                  nightly ? task.spec.source.path : "");
}

}  // namespace reshard
