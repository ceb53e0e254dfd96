#include "pipeline/nightly/nightly.hpp"

#include <algorithm>
#include <array>

#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/base/text/wire.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/run/run_saves.hpp"
#include "core/transport/monitor/heartbeat.hpp"
#include "pipeline/nightly/after_memory.hpp"
#include "pipeline/nightly/nightly_checkpoint.hpp"
#include "pipeline/nightly/nightly_choice.hpp"
#include "pipeline/nightly/nightly_target.hpp"
#include "pipeline/records/source_stamp.hpp"
#include "stages/write/publish.hpp"

namespace reshard {

static constexpr auto wire_fields(NightlySkip const&) {
  return std::tuple(&NightlySkip::name, &NightlySkip::reason);
}

namespace {

namespace fs = std::filesystem;

/// The stamp of a source and of what its target has rows or layers of.
SourceStamp with_inputs(SourceStamp stamp, JobSpec const& job) {
  for (std::string const& path : {job.target.changes.rows_from, job.target.changes.mtp_from})
    if (!path.empty()) stamp.digest = xxh3_128(stamp.digest + source_stamp(path).digest);
  return stamp;
}
using Action = NightlyTask::Action;

/// The search of one rank.
class Search {
 public:
  explicit Search(JobSpec const& job)
      : job_(job), source_(full_path(job.source.path)), target_(full_path(job.target.path)) {}

  NightlyTask run() {
    if (job_.run.verify == VerifyChoice::off)
      fail(ErrorKind::usage,
           "run.verify = \"off\": writes no {}, from which `reshard nightly` learns what is "
           "converted. Set it to \"streamed\" or \"written\".",
           manifest_name);
    std::error_code ignored;
    if (!fs::is_directory(source_, ignored))
      fail(ErrorKind::source,
           "{}: {}. source.path of a nightly job is the folder in which training saves its "
           "checkpoints: correct it.",
           source_.string(), fs::exists(source_, ignored) ? "is not a folder" : "does not exist");
    std::vector<ListedFolder> const folders =
        newest_first(with_valid_names(checkpoints_in(source_)));
    if (folders.empty() && holds_checkpoint(source_))
      fail(ErrorKind::usage,
           "{}: is a checkpoint itself. Name the folder that holds the checkpoints as source.path, "
           "or use `reshard run`.",
           source_.string());
    if (job_.nightly.verify_subset > 0 && job_.run.verify != VerifyChoice::written)
      fail(ErrorKind::usage,
           "nightly.verify_subset = {}: compares files with what was read back of them, but "
           "run.verify = \"{}\". Set run.verify to \"written\", or nightly.verify_subset to 0.",
           job_.nightly.verify_subset,
           job_.run.verify == VerifyChoice::streamed ? "streamed" : "off");
    Tracked const tracked = tracked_step(source_);
    if (tracked.empty) return wait_for_tracker();
    tracked_ = tracked.step;
    if (tracked_ && std::none_of(folders.begin(), folders.end(), [&](ListedFolder const& one) {
          return step_of_name(one.name) == tracked_;
        }))
      skip(std::string(megatron::tracker_name),
           fmt::format("names step {}, which has no checkpoint there", *tracked_));
    auto folder = folders.begin();
    while (folder != folders.end() && !take_newest(*folder)) ++folder;
    if (job_.nightly.backfill && folder != folders.end()) {
      if (job_.nightly.keep > 0) targets_ = counted_targets(job_);
      if (task_.action == Action::convert) newest_made_ = task_.name;
      while (++folder != folders.end())
        if (!take_older(*folder)) break;
    }
    warn_of_abandoned();
    return std::move(task_);
  }

 private:
  /// Without folders whose names no JSON text can hold: a target could not say that it was made
  /// from one of them.
  std::vector<ListedFolder> with_valid_names(std::vector<ListedFolder> folders) {
    std::erase_if(folders, [&](ListedFolder const& folder) {
      bool const valid = valid_utf8(folder.name) == folder.name;
      if (!valid) skip(folder.name, "has a name that is not UTF-8: rename it");
      return !valid;
    });
    return folders;
  }

  void warn_of_abandoned() {
    if (tracked_.value_or(0) == 0) return;  // "release" is no step
    std::vector<ListedFolder> converted;
    (void)capture([&] { converted = counted_targets(job_); });  // else the removal says why
    if (task_.action != Action::convert && !task_.name.empty())
      converted.push_back({task_.name, 0});
    std::string const note =
        abandoned_note(std::move(converted), *tracked_, source_.string(), target_.string());
    if (!note.empty()) task_.warnings.push_back(valid_utf8(note));
  }

  NightlyTask wait_for_tracker() {
    task_.action = Action::waiting;
    skip(std::string(megatron::tracker_name), "is empty: a program is writing it");
    return std::move(task_);
  }

  /// Whether this checkpoint is the newest one that counts.
  bool take_newest(ListedFolder folder) {
    SourceStamp stamp;
    if (!take_stamp(folder, stamp)) return false;
    auto task = decide(folder.name, stamp);
    if (!task) return false;
    task->skipped = std::move(task_.skipped);
    task_ = std::move(*task);
    current_ = std::move(folder);
    return true;
  }

  /// Adds what is to be done with an older one. False when its target would be removed at once, as
  /// those of all that are older still.
  bool take_older(ListedFolder folder) {
    SourceStamp stamp;
    if (!take_stamp(folder, stamp)) return true;
    if (!would_stay(targets_, current_, folder, static_cast<std::size_t>(job_.nightly.keep)))
      return false;
    std::optional<NightlyTask> task;
    if (auto const error = capture([&] { task = decide(folder.name, stamp); }))
      skip(folder.name, error->sentence());
    if (!task) return true;
    if (task->action == Action::convert) targets_.push_back(std::move(folder));
    if (task->action == Action::convert || task->after_due) task_.older.push_back(std::move(*task));
    return true;
  }

  bool take_stamp(ListedFolder& folder, SourceStamp& stamp) {
    if (auto const error = capture([&] { stamp = source_stamp(source_ / folder.name); })) {
      skip(folder.name, error->sentence());
      return false;
    }
    folder.newest_ns = stamp.newest_ns;
    return true;
  }

  /// The task for a checkpoint; nothing when it is passed over.
  std::optional<NightlyTask> decide(std::string const& name, SourceStamp const& of_source) {
    JobSpec const job = job_for(name);
    SourceStamp const stamp = with_inputs(of_source, job);
    (void)capture([&] {
      put_back_replaced(job.target.path);
    });  // else it is as if it had never been converted
    FoundTarget const found = find_target(job, stamp);
    TargetState const state = found.state;
    if (state == TargetState::made) {
      NightlyTask task = task_for(Action::up_to_date, name, job);
      task.after_due = !job_.nightly.after.empty() && !after_has_succeeded(job.target.path);
      return task;
    }
    if (std::string const reason = unfinished(name, stamp); !reason.empty()) {
      skip(name, reason);
      bool const converted = state == TargetState::outdated || state == TargetState::of_run ||
                             state == TargetState::extended;
      return converted ? std::optional(task_for(Action::waiting, name, job)) : std::nullopt;
    }
    if (state != TargetState::absent && state != TargetState::outdated && !job_.target.replace)
      refuse_target(job, found);
    NightlyTask task = task_for(Action::convert, name, job);
    task.source_record.set("nightly", true).set("stamp", stamp_json(stamp));
    task.job.target.replace = state != TargetState::absent;
    if (job_.nightly.incremental) task.job.target.incremental_from = previous_of(name);
    return task;
  }

  /// The target from which that of a checkpoint takes over what is unchanged: its own that is
  /// replaced, the one that this night makes first, or the newest.
  std::string previous_of(std::string const& name) {
    if (!counted_) counted_ = newest_first(counted_targets(job_));
    auto const is_there = [&](std::string const& wanted) {
      return std::ranges::any_of(*counted_,
                                 [&](ListedFolder const& one) { return one.name == wanted; });
    };
    if (is_there(name)) return (target_ / name).string();
    if (!newest_made_.empty()) return (target_ / newest_made_).string();
    return counted_->empty() ? std::string(no_previous)
                             : (target_ / counted_->front().name).string();
  }

  std::string unfinished(std::string const& name, SourceStamp const& stamp) const {
    TrackerWord const word = tracker_word(name, tracked_);
    if (word == TrackerWord::names) return "";
    if (word == TrackerWord::beyond)
      return fmt::format("is being written: {} names step {}", megatron::tracker_name, *tracked_);
    if (auto const seconds =
            unsettled_seconds(stamp.newest_ns, now_ns(), job_.nightly.settle_seconds))
      return fmt::format("changed {} s ago, nightly.settle_seconds = {}", *seconds,
                         job_.nightly.settle_seconds);
    return why_incomplete(source_ / name);
  }

  JobSpec job_for(std::string const& name) const {
    JobSpec job = job_;
    job.source.path = (source_ / name).string();
    job.target.path = (target_ / name).string();
    job.nightly = {};
    return job;
  }

  void skip(std::string const& name, std::string const& reason) {
    task_.skipped.push_back({valid_utf8(name), valid_utf8(reason)});  // a reason may name a file
  }

  static NightlyTask task_for(Action action, std::string const& name, JobSpec const& job) {
    NightlyTask task;
    task.action = action;
    task.name = name;
    task.job = job;
    return task;
  }

  JobSpec const& job_;
  fs::path source_;
  fs::path target_;
  std::optional<std::int64_t> tracked_;
  NightlyTask task_;
  ListedFolder current_;
  std::vector<ListedFolder> targets_;  ///< that count for nightly.keep, with those to come
  std::optional<std::vector<ListedFolder>> counted_;  ///< that count now, once they are asked for
  std::string newest_made_;                           ///< what this night converts first
};

Json skips_json(std::vector<NightlySkip> const& skips) {
  Json list = Json::array();
  for (NightlySkip const& skip : skips)
    list.push(Json().set("name", skip.name).set("reason", skip.reason));
  return list;
}

constexpr std::string_view wire_name = "the task of a night";

/// Tasks differ from the job in little: that travels.
void put(WireWriter& out, NightlyTask const& task) {
  out.number(static_cast<std::uint64_t>(task.action)).text(task.name);
  out.text(task.job.source.path).text(task.job.target.path).put(task.job.target.replace);
  out.text(task.job.target.incremental_from);
  out.text(task.source_record.dump()).put(task.after_due).put(task.skipped);
  out.put(task.warnings);
  out.number(task.older.size());
  for (NightlyTask const& older : task.older) put(out, older);
}

NightlyTask get(WireReader& in, JobSpec const& job) {
  NightlyTask task;
  task.job = job;
  task.job.nightly = {};
  task.action = static_cast<Action>(in.number());
  task.name = in.text();
  task.job.source.path = in.text();
  task.job.target.path = in.text();
  task.job.target.replace = in.get<bool>();
  task.job.target.incremental_from = in.text();
  std::string_view const record = in.text();
  task.source_record = parse_json(std::string(record), wire_name);
  task.after_due = in.get<bool>();
  task.skipped = in.get<std::vector<NightlySkip>>();
  task.warnings = in.get<std::vector<std::string>>();
  for (std::size_t more = in.count(); more > 0; --more) task.older.push_back(get(in, job));
  return task;
}

std::string skipped_text(NightlyTask const& task) {
  std::string text;
  for (NightlySkip const& skip : task.skipped)
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", skip.name, skip.reason);
  return text.empty() ? text : " (" + text + ")";
}

}  // namespace

NightlyTask find_nightly_task(JobSpec const& job, Comm const& comm) {
  Heartbeat const heartbeat(comm, job.run.stall_seconds);
  std::string packed;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    WireWriter out;
    put(out, Search(job).run());
    packed = std::move(out).take();
  });
  packed = comm.broadcast(std::move(packed), 0);
  WireReader in(packed, wire_name);
  NightlyTask task = get(in, job);
  in.finish();
  return task;
}

bool is_up_to_date(JobSpec const& job, Comm const& comm) {
  Heartbeat const heartbeat(comm, job.run.stall_seconds);
  bool made = false;
  if (comm.rank() == 0)
    (void)capture([&] {
      SourceStamp const stamp = with_inputs(source_stamp(job.source.path), job);
      made = find_target(job, stamp).state == TargetState::made;
    });
  return comm.max(made ? 1 : 0) != 0;
}

NightlyRemoval remove_surplus(JobSpec const& job, NightlyTask const& task,
                              std::set<std::string> const& awaited, Comm const& comm) {
  Heartbeat const heartbeat(comm, job.run.stall_seconds);
  NightlyRemoval removal;
  if (comm.rank() == 0)
    if (auto const error = capture([&] { removal = remove_surplus_targets(job, task, awaited); }))
      removal.warnings.push_back(error->sentence());
  for (std::string& warning : removal.warnings)
    warning = valid_utf8(warning);  // it may name a file
  comm.barrier();
  return removal;
}

std::vector<std::string> standing_targets(JobSpec const& job, Comm const& comm) {
  WireWriter out;
  std::vector<std::string> names;
  if (comm.rank() == 0)
    (void)capture([&] {
      for (ListedFolder const& folder : newest_first(counted_targets(job)))
        names.push_back(folder.name);
    });
  std::string const packed = comm.broadcast(out.put(names).bytes(), 0);
  return WireReader(packed, wire_name).all<std::vector<std::string>>();
}

std::string nightly_line(JobSpec const& job, NightlyTask const& task) {
  switch (task.action) {
    case Action::convert: return "";
    case Action::up_to_date:
      return fmt::format("nothing to do: {} is up to date with {}{}", task.job.target.path,
                         task.job.source.path, skipped_text(task));
    case Action::waiting:
      if (task.name.empty())
        return fmt::format("nothing to do yet: no checkpoint in {} can be chosen{}",
                           job.source.path, skipped_text(task));
      return fmt::format(
          "nothing to do yet: {} was converted and has changed since; it is still being written{}",
          task.job.source.path, skipped_text(task));
    case Action::nothing_complete: break;
  }
  if (task.skipped.empty())
    return fmt::format(
        "nothing to do: no complete checkpoint in {}, and no incomplete one. If training has saved "
        "one, correct source.path",
        job.source.path);
  return fmt::format("nothing to do: no complete checkpoint in {}{}", job.source.path,
                     skipped_text(task));
}

Json task_json(NightlyTask const& task, bool planned) {
  constexpr std::array<char const*, 4> words = {"converted", "up_to_date", "waiting",
                                                "nothing_complete"};
  Json json;
  json.set("action", planned ? "would convert" : words[static_cast<std::size_t>(task.action)]);
  bool const chosen = !task.name.empty();
  return json.set("source", chosen ? Json(task.job.source.path) : Json())
      .set("target", chosen ? Json(task.job.target.path) : Json());
}

Json nightly_json(NightlyTask const& task, NightlyRemoval const& removal, bool planned) {
  Json json = task_json(task, planned);
  json.set("skipped", skips_json(task.skipped));
  json.set("removed", Json(Json::Array(removal.removed.begin(), removal.removed.end())));
  return json.set("cleaned", Json(Json::Array(removal.cleaned.begin(), removal.cleaned.end())));
}

}  // namespace reshard
