#include "pipeline/publication/claim/claim_target.hpp"

#include <map>
#include <set>
#include <utility>

#include <sys/stat.h>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "pipeline/job/job_paths.hpp"
#include "pipeline/publication/claim/own_names.hpp"
#include "pipeline/publication/claim/strangers.hpp"
#include "pipeline/records/source_stamp.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Bytes on the disk of a folder and all below it.
std::uint64_t allocated_bytes(fs::path const& folder) {
  std::uint64_t bytes = 0;
  std::error_code ended;  // also when it is removed meanwhile
  for (fs::recursive_directory_iterator entry(folder, ended);
       !ended && entry != fs::recursive_directory_iterator(); entry.increment(ended)) {
    struct stat status {};
    if (::lstat(entry->path().c_str(), &status) == 0)
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  return bytes;
}

std::size_t count_of_iterations(fs::path const& root) {
  std::size_t count = 0;
  std::error_code ended;
  for (fs::directory_iterator it(root, ended); !ended && it != fs::directory_iterator();
       it.increment(ended)) {
    std::string const name = it->path().filename().string();
    std::error_code unknown;
    bool const is_step = matches_glob("iter_*", name) || name == "release" ||
                         (matches_glob("global_step*", name) && !name.ends_with("_universal"));
    if (is_step && it->is_directory(unknown)) ++count;
  }
  return count;
}

/// Beside what a conversion has written there may be something of which there is no other copy.
/// Where no record lists the checkpoint's files, they are known by their names.
void check_only_a_checkpoint(fs::path const& target, TargetDraft const& draft) {
  if (std::size_t const count = count_of_iterations(target); count > 1)
    fail(
        ErrorKind::target,
        "{}: holds {}, and target.replace = true removes no more than one checkpoint. Choose another target.path.",
        target.string(), counted(count, "iteration"));
  std::optional<Manifest> manifest;
  (void)capture([&] { manifest = find_manifest(target, ManifestScope::files); });
  std::set<std::string> const listed =
      manifest ? written_files(*manifest) : std::set<std::string>();
  bool const recorded = manifest && listed.size() > 1;
  std::set<std::string> const files = recorded ? listed : files_to_write(draft);
  Strangers const strangers = strangers_in(target, [&](std::string const& name, bool is_folder) {
    if (is_folder) return leads_to_one_of(files, name) || (!recorded && is_checkpoint_folder(name));
    return files.contains(name) || (!recorded && is_checkpoint_file(name));
  });
  if (strangers.count == 0) return;
  bool const one = strangers.count == 1;
  fail(ErrorKind::target,
       "{}: holds {}, which {} not part of the checkpoint there, and target.replace = true "
       "removes nothing else. Move {} away, or choose another target.path.",
       target.string(), text_of(strangers), one ? "is" : "are", one ? "it" : "them");
}

/// replace = true is no leave to remove what is not a checkpoint; without it, it is not advised.
void check_replaceable(JobSpec const& spec, TargetDraft const& draft) {
  std::error_code ignored;
  fs::path const target = spec.target.path;
  if (!fs::is_directory(target, ignored) || fs::is_empty(target, ignored)) return;
  bool is_checkpoint = false;
  if (auto const unseen = capture([&] { is_checkpoint = !recognise(target).empty(); }))
    throw Error(ErrorKind::target, unseen->sentence());
  if (is_checkpoint && spec.target.replace) return check_only_a_checkpoint(target, draft);
  if (is_checkpoint) return;  // it exists already
  fail(ErrorKind::target,
       "{}: is neither empty nor a checkpoint, so target.replace = true does not remove it. Choose "
       "another target.path, or remove it yourself.",
       target.string());
}

void check_free_space(fs::path const& target, DiskSpace const& space) {
  std::uint64_t free = space.free_bytes;
  if (free >= space.needed_bytes) return;
  for (fs::path const& left : leftovers_of(target).staging)
    free += allocated_bytes(left);  // reused, or removed first
  if (free >= space.needed_bytes) return;
  fail(ErrorKind::resources,
       "{}: {} free, this run writes {}. Free {} or set target.path to another file system.",
       target.string(), human_bytes(free), human_bytes(space.needed_bytes),
       human_bytes(space.needed_bytes - free));
}

/// Names of this form are those of unfinished targets and of what goes with them.
void check_name(fs::path const& target) {
  std::string const name = absolute_target(target).filename().string();
  if (parse_hidden_name(name) ||
      (name.starts_with('.') && name.ends_with(".lock") && name.size() > 6))
    fail(ErrorKind::usage,
         "[target] path = {}: names such as .NAME.part-TOKEN and .NAME.lock are reserved for "
         "active runs. Choose another name.",
         json_quoted(target.string()));
}

/// Without a stamp a nightly run converts again: a folder of the source that may not be read is no
/// reason to end a job.
void add_stamp(Json& record, std::string const& path, Checkpoint const& source,
               std::map<fs::path, FileStamp> known) {
  if (record.find("stamp") != nullptr) return;
  for (std::size_t f = 0; f < source.files.size(); ++f)
    known.emplace(source.files[f], source.stamps.taken[f]);
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

/// Means by which rank 0 takes a target.
struct Taking {
  TargetTask const& task;
  TargetClaim const& claim;
  Publication& publication;
};

/// Rank 0's part of ClaimedTarget.
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

ExistingTarget existing_target(JobSpec const& spec) {
  return spec.target.replace ? ExistingTarget::replace : ExistingTarget::refuse;
}

void check_target(JobSpec const& spec, Checkpoint const& source, TargetDraft const& draft,
                  DiskSpace const& space) {
  check_name(spec.target.path);
  check_source_apart(spec, source);
  check_replaceable(spec, draft);
  check_free_space(spec.target.path, space);
}

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
