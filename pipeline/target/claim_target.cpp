#include "pipeline/target/claim_target.hpp"

#include <map>
#include <set>
#include <utility>

#include "core/formats/manifest/manifest.hpp"
#include "pipeline/target/source_stamp.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Without a stamp a nightly run converts again: a folder of the source that may not be read is no
/// reason to end a job.
void add_stamp(Json& record, std::string const& path, Checkpoint const& source,
               std::map<fs::path, FileStamp> known) {
  if (record.find("stamp") != nullptr) return;
  for (std::size_t f = 0; f < source.files.size(); ++f)
    known.emplace(source.files[f], source.stamps[f]);
  auto const error = capture([&] { record.set("stamp", stamp_json(source_stamp(path, known))); });
  if (error && error->kind() != ErrorKind::source) throw *error;
}

/// Small files are rewritten, and nothing that lies between them is published.
void remove_unplanned(fs::path const& staging, JobPlan const& plan) {
  std::set<fs::path> planned;
  for (TargetFile const& file : plan.files)
    for (fs::path path = staging / file.path; path != staging; path = path.parent_path())
      planned.insert(path);
  std::vector<fs::path> others;
  for (auto entry = fs::recursive_directory_iterator(staging);
       entry != fs::recursive_directory_iterator(); ++entry) {
    if (planned.contains(entry->path())) continue;
    others.push_back(entry->path());
    entry.disable_recursion_pending();
  }
  for (fs::path const& other : others) fs::remove_all(other);
}

/// What rank 0 takes a target with.
struct Taking {
  TargetTask const& task;
  TargetClaim const& claim;
  Publication& publication;
};

/// What of ClaimedTarget is rank 0's.
struct Taken {
  EarlierTarget earlier = EarlierTarget::nothing;
  std::string total;
  std::vector<std::string> warnings;
};

/// Unless something is resumed, the staging folder is new and empty.
Taken take(Taking const& taking) {
  Publication& publication = taking.publication;
  Taken taken;
  if (!publication.is_locked())
    taken.warnings.push_back(fmt::format(
        "{}: its file system has no locks. Another job for this target is detected only by its "
        "changes. What a killed run left can be resumed after {} s without a change.",
        taking.task.spec.target.path, quiet_seconds));
  UsableLeftovers const usable =
      usable_leftovers(taking.task, publication.leftovers(),
                       {taking.claim.fresh, taking.claim.journaled,
                        [&](fs::path const& folder) { return publication.is_own_folder(folder); }});
  taken.earlier = usable.earlier;
  if (usable.earlier == EarlierTarget::nothing) {
    if (auto const& staging = publication.leftovers().staging; !staging.empty())
      taken.warnings.push_back(
          fmt::format("{}: left by an earlier run and not resumed: {}. It was removed.",
                      staging.front().string(), usable.why_not));
    publication.start_afresh();
    return taken;
  }
  publication.go_on(usable.journal, usable.staging);
  if (usable.earlier == EarlierTarget::part) {
    remove_unplanned(publication.staging(), taking.task.plan);
  } else if (auto const made = find_manifest(publication.staging())) {
    taken.total = made->total;
  }
  return taken;
}

}  // namespace

ClaimedTarget claim_target(TargetTask const& task, TargetClaim const& claim) {
  Comm const& comm = task.comm;
  std::unique_ptr<Publication> publication;
  Taken taken;
  Json source_record = claim.source_record;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    check_target(task.spec, task.source, task.plan, claim.space);
    publication = std::make_unique<Publication>(task.spec.target.path, existing_target(task.spec));
    taken = take({task, claim, *publication});
    // Before anything is read but headers: a change from now on ends the job, or shows in the
    // stamp.
    add_stamp(source_record, task.spec.source.path, task.source, claim.described_by);
  });
  std::string const token = comm.broadcast(publication ? publication->token() : "", 0);
  auto const earlier = static_cast<EarlierTarget>(comm.max(static_cast<int>(taken.earlier)));
  ClaimedTarget claimed{
      StagedTarget(task.spec.target.path, token, std::move(publication), claim.journaled), earlier,
      std::move(taken.total), std::move(source_record), std::move(taken.warnings)};
  if (earlier == EarlierTarget::whole) claimed.target.seal();
  return claimed;
}

}  // namespace reshard
