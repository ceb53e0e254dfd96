#include "pipeline/nightly/nightly_target.hpp"

#include <algorithm>
#include <set>

#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "pipeline/nightly/after_memory.hpp"
#include "pipeline/publication/claim/strangers.hpp"
#include "pipeline/records/reading_record.hpp"
#include "stages/write/publish.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view removed_ending = "removed";
constexpr std::uint64_t most_path_bytes = 1U << 16U;

/// `.NAME.removed` beside the target NAME.
fs::path removed_of(fs::path const& target) {
  return target.parent_path() / fmt::format(".{}.{}", target.filename().string(), removed_ending);
}

/// The record of a folder; nothing without one, or with one that cannot be read.
std::optional<Manifest> record_of(fs::path const& folder) {
  std::optional<Manifest> manifest;
  (void)capture([&] { manifest = find_manifest(folder); });
  return manifest;
}

/// Where its source was, with links resolved; "" when it does not say so in full.
fs::path recorded_source(Manifest const& manifest) {
  Json const* const path = manifest.source.find("path");
  if (path == nullptr || path->text() == nullptr || !fs::path(*path->text()).is_absolute())
    return {};
  return resolved_path(*path->text());  // it may be gone
}

/// A job as far as it decides what a target holds. The source is compared for itself.
JobSpec essence(JobSpec job) {
  job.source.path = "source";
  job.target.path = "target";
  job.target.replace = false;
  job.target.incremental_from = "";
  job.target.incremental_links = false;
  job.run = {};
  job.nightly = {};
  return job;
}

/// Whether a nightly job wrote the record.
bool is_of_nightly(Manifest const& manifest) {
  Json const* const mark = manifest.source.find("nightly");
  return mark != nullptr && mark->boolean() != nullptr && *mark->boolean();
}

bool same_job(JobSpec const& job, Manifest const& manifest) {
  std::optional<JobSpec> recorded;
  // A record that this version does not understand is of another job.
  (void)capture([&] {
    if (manifest.job.text() != nullptr)
      recorded = parse_job_spec(*manifest.job.text(), manifest_name, {}, JobUse::run, [&job] {
        std::vector<std::string> axes;
        for (auto const& [axis, size] : job.target.layout.sizes) axes.push_back(axis);
        return axes;
      });
  });
  return recorded && essence(*recorded) == essence(job);
}

std::optional<SourceStamp> recorded_stamp(Manifest const& manifest) {
  Json const* const recorded = manifest.source.find("stamp");
  return recorded == nullptr ? std::nullopt : parse_stamp(*recorded);
}

/// Without a stamp nothing is known: the clocks of two hosts say nothing of what came first.
bool same_source(Manifest const& manifest, SourceStamp const& source) {
  auto const stamp = recorded_stamp(manifest);
  return stamp && stamp->digest == source.digest;
}

/// When a target's source was last changed. A backfilled target is younger than its successors.
std::int64_t source_ns(Manifest const& manifest) {
  auto const stamp = recorded_stamp(manifest);
  return stamp ? stamp->newest_ns : 0;
}

class Surplus {
 public:
  Surplus(JobSpec const& job, NightlyTask const& task, std::set<std::string> const& awaited)
      : job_(job),
        task_(task),
        awaited_(awaited),
        folder_(full_path(job.target.path)),
        source_(resolved_path(job.source.path)) {}

  NightlyRemoval run() {
    std::vector<ListedFolder> targets;
    std::error_code error;
    for (fs::directory_iterator it(folder_, error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      std::string const name = it->path().filename().string();
      if (valid_utf8(name) != name) continue;  // no night makes such a target
      if (name.starts_with('.'))
        look_at_hidden(name);
      else if (job_.nightly.keep > 0)
        if (auto const made_ns = counts(it->path())) targets.push_back({name, *made_ns});
    }
    if (error && error != std::errc::no_such_file_or_directory) {
      removal_.warnings.push_back(
          fmt::format("{}: cannot be listed: {}. Nothing was removed or cleaned there.",
                      folder_.string(), error.message()));
      return std::move(removal_);
    }
    ListedFolder const current{task_.name,
                               task_.name.empty() ? 0 : newest_ns(folder_ / task_.name)};
    for (std::string const& name :
         surplus_targets(std::move(targets), current, static_cast<std::size_t>(job_.nightly.keep)))
      remove(name);
    for (std::string const& name : half_removed_) finish_removal(name);
    for (std::string const& name : interrupted_) clean(name);
    for (std::string const& name : remembered_)
      if (!is_there(folder_ / name)) {
        forget_after(folder_ / name);
        forget_readings(folder_ / name);
      }
    return std::move(removal_);
  }

  /// The targets that count; the others are left out silently.
  std::vector<ListedFolder> counted() {
    std::vector<ListedFolder> targets;
    std::error_code ended;
    for (fs::directory_iterator it(folder_, ended); !ended && it != fs::directory_iterator();
         it.increment(ended)) {
      std::string const name = it->path().filename().string();
      if (name.starts_with('.')) continue;
      if (auto const made_ns = counts(it->path())) targets.push_back({name, *made_ns});
    }
    return targets;
  }

 private:
  static std::int64_t newest_ns(fs::path const& target) {
    auto const manifest = record_of(target);
    return manifest ? source_ns(*manifest) : 0;
  }

  /// Whether a nightly job made the folder (no link to one) from a checkpoint of that name in the
  /// training directory. Then its record is given.
  std::optional<Manifest> made_here(fs::path const& path, std::string const& name) const {
    std::error_code ignored;
    if (!fs::is_directory(fs::symlink_status(path, ignored))) return std::nullopt;
    auto manifest = record_of(path);
    if (!manifest || !is_of_nightly(*manifest) || !is_source_of(name, recorded_source(*manifest)))
      return std::nullopt;
    return manifest;
  }

  bool is_source_of(std::string const& name, fs::path const& source) const {
    return source.filename() == name && source != source_ && holds(source_, source);
  }

  /// The time of its source, when the target counts for nightly.keep.
  std::optional<std::int64_t> counts(fs::path const& path) {
    auto const manifest = made_here(path, path.filename().string());
    if (!manifest) return std::nullopt;
    std::string const stranger = stranger_in(path, written_files(*manifest));
    if (!stranger.empty())
      removal_.warnings.push_back(fmt::format(
          "{}: is left unchanged and does not count for nightly.keep: it holds {}, which the "
          "conversion did not write",
          path.string(), stranger));
    return stranger.empty() ? std::optional(source_ns(*manifest)) : std::nullopt;
  }

  /// Whether the folder may be deleted.
  bool is_ours(fs::path const& path, std::string const& name) const {
    auto const manifest = made_here(path, name);
    return manifest && stranger_in(path, written_files(*manifest)).empty();
  }

  /// Whether a removal that did not come to its end left the folder (no link to one). The last
  /// thing in it is the record.
  bool is_half_removed(fs::path const& path, std::string const& name) const {
    std::error_code ignored;
    if (!fs::is_directory(fs::symlink_status(path, ignored))) return false;
    return fs::is_empty(path, ignored) || is_ours(path, name);
  }

  /// Removals that did not end are ours to finish; remains of interrupted runs are seen to
  /// afterwards.
  void look_at_hidden(std::string const& name) {
    std::string const ending = fmt::format(".{}", removed_ending);
    if (name.ends_with(ending) && name.size() > ending.size() + 1)
      half_removed_.push_back(name.substr(1, name.size() - ending.size() - 1));
    if (auto remembered = target_of_memory(name)) remembered_.push_back(std::move(*remembered));
    if (auto read = target_of_readings(name)) remembered_.push_back(std::move(*read));
    auto const left = parse_hidden_name(name);
    if (left && awaited_.contains(left->target)) return;
    // This run's own is resumed while its checkpoint is awaited; beside a target that is as it
    // should be it is useless.
    if (left && (left->target != task_.name || task_.action != NightlyTask::Action::waiting))
      interrupted_.insert(left->target);
  }

  /// The name goes first, so that half a checkpoint is never mistaken for a complete one.
  void remove(std::string const& name) {
    fs::path const target = folder_ / name;
    auto const error = capture([&] {
      TargetLock const lock(target, make_token());  // no other job may write it meanwhile
      if (auto const sign = sign_of_life(leftovers_of(target), lock.is_held(), lock.now_ns()))
        fail(ErrorKind::target, "{}.", *sign);
      if (!is_ours(target, name)) return;
      fs::path const hidden = removed_of(target);
      if (is_there(hidden) && !is_half_removed(hidden, name))
        fail(ErrorKind::target,
             "{}: has the name that a target gets before its files are removed, and no nightly job "
             "created it. Move it away.",
             hidden.string());
      delete_folder(hidden);
      fs::rename(target, hidden);
      removal_.removed.push_back(target.string());
      delete_folder(hidden);
    });
    if (error)
      removal_.warnings.push_back(fmt::format("{}: a surplus checkpoint was not removed: {}",
                                              target.string(), error->sentence()));
  }

  void finish_removal(std::string const& name) {
    fs::path const target = folder_ / name;
    fs::path const hidden = removed_of(target);
    if (!is_half_removed(hidden, name)) return;
    auto const error = capture([&] {
      TargetLock const lock(target, make_token());  // no other job may write it meanwhile
      delete_folder(hidden);
    });
    if (error)
      removal_.warnings.push_back(fmt::format("{}: a surplus checkpoint was not removed: {}",
                                              hidden.string(), error->sentence()));
  }

  /// The record goes last: whatever ends this early, the rest still says whose it is.
  static void delete_folder(fs::path const& folder) {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(folder, error))) return;
    for (auto const& entry : fs::directory_iterator(folder))
      if (entry.path().filename() != manifest_name) fs::remove_all(entry.path());
    fs::remove_all(folder);
  }

  /// Removes what an interrupted night left of a checkpoint that no later night will choose; warns
  /// of what is another's or in use.
  void clean(std::string const& name) {
    fs::path const target = folder_ / name;
    Leftovers left;
    if (auto const unseen = capture([&] { left = leftovers_of(target); }))
      removal_.warnings.push_back(unseen->sentence());
    if (left.empty()) return;
    fs::path const first = !left.staging.empty() ? left.staging.front() : left.all().front();
    Cleaned cleaned;
    auto const error = capture([&] {
      if (is_abandoned(left, name)) cleaned = remove_leftovers(target, WithoutLocks::refuse);
    });
    if (!error && cleaned.removed) removal_.cleaned.push_back(first.string());
    bool gone = false;
    (void)capture([&] { gone = leftovers_of(target).empty(); });
    if (!error && gone) return;
    removal_.warnings.push_back(fmt::format(
        "{}: belongs to a run that is still active, or was left by an interrupted one: then "
        "`reshard clean {}` removes it",
        first.string(), target.string()));
  }

  /// A nightly run that waits to be resumed holds no lock: the time of the last change counts,
  /// too.
  bool is_abandoned(Leftovers const& left, std::string const& name) const {
    bool const newer = std::any_of(task_.skipped.begin(), task_.skipped.end(),
                                   [&](NightlySkip const& skip) { return skip.name == name; });
    if (task_.name.empty() || newer || !is_left_by_nightly(left, name)) return false;
    std::int64_t newest_ns = 0;
    for (auto const* const list : {&left.staging, &left.journals})
      for (fs::path const& path : *list)
        if (capture([&] { newest_ns = std::max(newest_ns, source_stamp(path).newest_ns); }))
          return false;
    return !unsettled_seconds(newest_ns, now_ns(), job_.nightly.settle_seconds);
  }

  /// A journal records its owner; a staging folder without one is useless to every run.
  bool is_left_by_nightly(Leftovers const& left, std::string const& name) const {
    if (left.journals.empty()) return std::filesystem::exists(fs::symlink_status(source_ / name));
    return std::all_of(left.journals.begin(), left.journals.end(), [&](fs::path const& journal) {
      std::error_code unknown;
      if (left.staging.empty() && fs::is_empty(journal, unknown) && !unknown)
        return true;  // the last step of a removal
      std::string source;
      if (capture([&] { source = read_text_file(journal / journal_source_name, most_path_bytes); }))
        return false;
      return is_source_of(name, resolved_path(source));
    });
  }

  JobSpec const& job_;
  NightlyTask const& task_;
  std::set<std::string> const& awaited_;
  fs::path folder_;
  fs::path source_;
  std::vector<std::string> half_removed_;
  std::set<std::string> interrupted_;
  std::vector<std::string> remembered_;  ///< targets for which nightly.after has succeeded
  NightlyRemoval removal_;
};

}  // namespace

FoundTarget find_target(JobSpec const& job, SourceStamp const& source) {
  std::error_code ignored;
  if (fs::symlink_status(job.target.path, ignored).type() == fs::file_type::not_found)
    return {TargetState::absent, ""};
  auto const manifest = record_of(job.target.path);
  if (!manifest || recorded_source(*manifest) != resolved_path(job.source.path))
    return {TargetState::foreign, ""};
  if (same_job(job, *manifest) && same_source(*manifest, source)) return {TargetState::made, ""};
  if (!is_of_nightly(*manifest)) return {TargetState::of_run, ""};
  if (manifest->format != name(job.target.format))
    return {TargetState::other_format, manifest->format};
  std::string stranger = stranger_in(job.target.path, written_files(*manifest));
  return stranger.empty() ? FoundTarget{TargetState::outdated, ""}
                          : FoundTarget{TargetState::extended, std::move(stranger)};
}

void refuse_target(JobSpec const& job, FoundTarget const& found) {
  std::string const& path = job.target.path;
  constexpr std::string_view allow = "or set target.replace = true to replace it";
  switch (found.state) {
    case TargetState::other_format:
      fail(
          ErrorKind::target,
          "{}: a nightly job with target.format = \"{}\" made it, this one has target.format = \"{}\". Choose another target.path, {}.",
          path, found.detail, name(job.target.format), allow);
    case TargetState::of_run:
      fail(ErrorKind::target,
           "{}: `reshard run` made it from {}, with another job or before the source changed. "
           "Move it away, choose another target.path, {}.",
           path, job.source.path, allow);
    case TargetState::extended:
      fail(ErrorKind::target,
           "{}: is outdated, and holds {}, which the conversion did not write. Move that away, "
           "{}.",
           path, found.detail, allow);
    default:
      fail(ErrorKind::target,
           "{}: exists already, and no {} in it states that it was made from {}. Move it away, or "
           "choose another target.path.",
           path, manifest_name, job.source.path);
  }
}

std::vector<ListedFolder> counted_targets(JobSpec const& job) {
  return Surplus(job, {}, {}).counted();
}

NightlyRemoval remove_surplus_targets(JobSpec const& job, NightlyTask const& task,
                                      std::set<std::string> const& awaited) {
  return Surplus(job, task, awaited).run();
}

}  // namespace reshard
