#include "pipeline/publication/begin_target.hpp"

#include <map>
#include <set>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/threads/workers.hpp"
#include "core/io/io_engines.hpp"
#include "core/plan/cells/schedule.hpp"
#include "pipeline/publication/integrity_file.hpp"
#include "pipeline/publication/target_rounds.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The rank that writes to a file first; of files without payload the ranks take turns.
std::vector<int> owners_of(JobPlan const& plan, int ranks) {
  constexpr int none = -1;
  std::vector<int> owners(plan.files.size(), none);
  RankCells const cells(plan.plan, ranks);
  for (int rank = 0; rank < ranks; ++rank)
    for (std::size_t c = cells.of(rank).begin; c < cells.of(rank).end; ++c)
      for (Region const& region : plan.plan.regions_of(plan.plan.cells[c]))
        if (int& owner = owners[region.to]; owner == none) owner = rank;
  for (std::size_t f = 0; f < owners.size(); ++f)
    if (owners[f] == none) owners[f] = narrow<int>(f % static_cast<std::size_t>(ranks));
  return owners;
}

/// Those that this rank owns, with their folders.
void make_files(StagedTarget const& target, BegunTarget& begun, int rank, bool going_on) {
  std::vector<std::uint32_t> const mine = files_of(begun, rank);
  std::set<fs::path> folders;
  std::set<fs::path> above;
  for (std::uint32_t const f : mine) folders.insert(begun.layouts[f].path.parent_path());
  folders.erase(target.folder());
  for (fs::path const& folder : folders) above.insert(folder.parent_path());
  above.erase(target.folder());
  for (fs::path const& folder : above) make_folders(folder);
  std::vector<fs::path> const each(folders.begin(), folders.end());
  overlapped(each.size(), [&](std::size_t i) { make_folders(each[i]); });
  overlapped(mine.size(), [&](std::size_t i) {
    TargetLayout const& layout = begun.layouts[mine[i]];
    File file = going_on ? reopen_target_file(layout) : create_target_file(layout);
    target.is_journaled() ? begun.files->adopt(mine[i], std::move(file)) : file.close();
  });
}

/// Writes the bytes that ranks of an earlier run had kept back when it ended.
void write_held(std::span<TargetLayout const> layouts, std::span<HeldBytes const> held) {
  std::map<std::uint32_t, std::vector<FileSegment>> by_file;
  for (HeldBytes const& one : held) by_file[one.file].push_back(one.segment);
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

BegunTarget begin_target(TargetTask const& task, ClaimedTarget const& claimed,
                         std::string_view engine) {
  Comm const& comm = task.comm;
  StagedTarget const& target = claimed.target;
  auto layouts = layouts_in(target.folder(), task.plan);
  TargetSums sums = sums_of(task, layouts);
  BegunTarget begun{std::move(layouts), std::move(sums), nullptr, {}, std::nullopt};
  bool const going_on = claimed.earlier == EarlierTarget::part;
  together(comm, [&] {
    begun.owners = owners_of(task.plan, comm.size());
    begun.files = std::make_unique<FileSet>(paths_of(begun.layouts), FileSet::Access::write,
                                            FileSet::usual_open_limit(), make_file_io(engine));
    make_files(target, begun, comm.rank(), going_on);
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

std::vector<TargetLayout> layouts_in(fs::path const& staging, JobPlan const& plan) {
  std::vector<TargetLayout> layouts;
  for (TargetFile const& file : plan.files)
    layouts.push_back({staging / file.path, file.size_bytes, file.frame});
  return layouts;
}

TargetSums sums_of(TargetTask const& task, std::span<TargetLayout const> layouts) {
  auto const file_sums =
      task.spec.run.verify == VerifyChoice::written ? FileSums::taken : FileSums::not_taken;
  return {task.plan, layouts, task.source.records.size(), file_sums,
          task.previous.records ? reuse_block_bytes : 0};
}

std::vector<std::uint32_t> files_of(BegunTarget const& begun, int rank) {
  std::vector<std::uint32_t> files;
  for (std::uint32_t f = 0; f < begun.owners.size(); ++f)
    if (begun.owners[f] == rank) files.push_back(f);
  return files;
}

void note_job(TargetTask const& task, ClaimedTarget const& claimed) {
  bool const nightly = claimed.source_record.find("nightly") != nullptr;
  claimed.target.journal().create(claimed.target.folder(), task.identity,
                                  nightly ? task.spec.source.path : "");
}

}  // namespace reshard
