#include "pipeline/run/committed_job.hpp"

#include <cstdlib>
#include <utility>

#include "core/base/capture.hpp"
#include "core/base/heap.hpp"
#include "core/base/threads/activity.hpp"
#include "pipeline/job/plan_request.hpp"
#include "pipeline/records/source_manifest.hpp"
#include "pipeline/run/checks/source_records.hpp"
#include "pipeline/verify/target_gate.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// An Error when what was read is not what the source is now, or was when it was saved.
void check_source(PlannedJob const& job, SourceWatch const& watch, FilledTarget const& target,
                  std::span<std::uint64_t const> digests, CommittedJob& committed) {
  Comm const& comm = target.task.comm;
  together(comm, [&] {
    watch.look_again(comm);
    if (job.manifest)
      committed.digests_compared = check_source_digests(*job.manifest, job.source, job.plan,
                                                        digests, job.previous.taken.tensors);
  });
  committed.records_compared =
      check_source_records(job.source, job.plan.source, target.begun.sums.account(), comm);
}

/// Logical tensors whose values the job computes out of several.
std::set<std::string> merged_tensors(JobPlan const& plan) {
  std::set<std::string> names;
  for (std::size_t t = 0; t < plan.source.tensors.size(); ++t)
    for (std::uint32_t const blob : plan.source.tensors[t].blobs()) {
      std::size_t const file = plan.source.blobs[blob].file;
      if (file >= plan.source.real_files() &&
          plan.source.views[file - plan.source.real_files()].kind == ViewKind::merge)
        names.insert(plan.model->tensors()[t].name);
    }
  return names;
}

/// With run.self_check: an Error of kind self_check when values of the target in `folder` are not
/// those of the source. The first half of the model's digest is the seed.
void check_itself(JobRun const& run, PlannedJob const& job, fs::path const& folder,
                  CommittedJob& committed) {
  if (run.spec.run.self_check == 0) return;
  Clock::time_point const start = Clock::now();
  begin_phase("checking values by a second arithmetic");
  SelfCheckRequest request;
  request.sides.a = run.spec.source.path;
  request.sides.b = folder;
  request.sides.by_records = false;  // the job says how both are read
  request.sides.terms_a = {
      .map = job.plan.stored_names ? "none" : run.spec.model.map,
      .config = run.spec.source.config,
      .prefix = run.spec.source.prefix,
      .vocab = run.spec.model.true_vocab_size,
      .frozen = frozen_patterns(run.spec),
      .tp = run.spec.source.tp,
      .etp = run.spec.source.etp,
  };
  request.sides.terms_b.prefix = run.spec.target.options.dcp.prefix;
  request.sides.terms_b.frozen = job.plan.frozen;
  request.sides.library = run.context.library;
  request.elements = static_cast<std::uint64_t>(run.spec.run.self_check);
  request.seed = std::strtoull(committed.verified.total.substr(0, 16).c_str(), nullptr, 16);
  request.changed = merged_tensors(job.plan);
  // A map of the source's own names does not read the target; a target without a config has that
  // of the source.
  std::string const& given = run.spec.target.options.dcp.map;
  for (auto const& [map, config] :
       {std::pair(given.empty() ? run.spec.model.map : given, std::string()),
        std::pair(given.empty() ? std::string("auto") : given, std::string()),
        std::pair(given.empty() ? std::string("auto") : given, run.spec.source.config)}) {
    request.sides.terms_b.map = job.plan.stored_names ? "none" : map;
    request.sides.terms_b.config = config;
    committed.self_check = self_check(request, run.comm);
    if (committed.self_check->why_not.empty()) break;
  }
  committed.self_check_seconds = seconds_since(start);
  SelfCheckResult const& result = *committed.self_check;
  together(run.comm, [&] {
    if (result.sound()) return;
    fail(ErrorKind::self_check,
         "self-check: {} of {} elements are not those of the source (seed {}). {}. Nothing was "
         "published. {} Keep the source, and report the job file with this message.",
         result.wrong, result.elements, result.seed, result.faults.front(),
         run.spec.target.incremental_from.empty()
             ? "It is a fault of this program or of the disk."
             : "The previous target was changed, or it is a fault of this program or of the disk: "
               "run again without target.incremental_from.");
  });
}

/// An Error of kind self_check when the target is none that a later job could read.
void read_as_source(JobRun const& run, PlannedJob const& job, fs::path const& folder) {
  begin_phase("opening the target as a source");
  return_free_memory();
  pass_gate({run.spec, job.source, job.plan, folder, run.context.library}, run.comm);
}

/// The target is written and compared: nothing is moved any more, and a reader's tables are as
/// large as those of the plan. What the target is stays.
void forget_plan(JobSpec const& spec, PlannedJob& job, FilledTarget const& target) {
  job.plan.plan = {};
  job.manifest.reset();
  if (spec.run.self_check == 0) {  // else it asks which tensors are computed
    job.plan.source.tensors = {};
    job.plan.source.blobs = {};
  }
  for (TargetFile& file : job.plan.files) file.frame.reset();
  for (TargetLayout& layout : target.begun.layouts) layout.frame.reset();
}

/// Reads the target back, compares it with the source, opens it as one and seals it.
void verify(JobRun const& run, PlannedJob& job, FilledTarget const& target,
            CompletedTarget& completed, CommittedJob& committed) {
  run.progress.begin(
      run.comm, "verify",
      run.spec.run.verify == VerifyChoice::written ? target_file_bytes(target.task.plan) : 0,
      StageTotal::of_all_ranks);
  std::uint64_t read_back = 0;
  auto const watch = [&](std::uint64_t bytes) {
    read_back = bytes;
    run.progress.look(bytes);
    check_stop(run, "while the target was read back");
  };
  auto const failure = capture([&] {
    committed.verified =
        verify_target(target.task, target.claimed, target.begun, target.rounds, completed, watch,
                      [&] { forget_plan(run.spec, job, target); });
  });
  run.progress.end(read_back, false);
  if (failure) throw *failure;
  check_itself(run, job, target.claimed.target.folder(), committed);
  forget_plan(run.spec, job, target);
  target.rounds.forget_reading_back();
  read_as_source(run, job, target.claimed.target.folder());
  seal_target(target.task, target.claimed, completed);
  together(run.comm, [&] { check_stop(run, "after all was written"); });
}

}  // namespace

CommittedJob commit_job(JobRun const& run, PlannedJob& job, SourceWatch const& watch,
                        FilledTarget const& target, std::vector<std::uint64_t> digests) {
  CommittedJob committed;
  Clock::time_point const start = Clock::now();
  begin_phase("completing the target's files");
  CompletedTarget completed = complete_target(target.task, target.claimed.target, target.begun,
                                              target.rounds, std::move(digests));
  check_source(job, watch, target, completed.digests, committed);
  committed.states = prove_states(run.spec, job, completed.digests, run.comm);
  begin_phase("verifying");
  Clock::time_point const checking = Clock::now();
  verify(run, job, target, completed, committed);
  committed.verify_seconds = seconds_since(checking) - committed.self_check_seconds;
  begin_phase("publishing");
  committed.left_behind = target.claimed.target.publish(run.comm);
  committed.commit_seconds =
      seconds_since(start) - committed.verify_seconds - committed.self_check_seconds;
  return committed;
}

CommittedJob publish_only(JobRun const& run, PlannedJob const& job, ClaimedTarget& claimed) {
  CommittedJob committed;
  Clock::time_point const start = Clock::now();
  if (run.comm.rank() == 0)
    run.progress.note(
        "an earlier run wrote and verified the complete target: it is only renamed now");
  together(run.comm, [&] { check_stop(run, "before the target was renamed"); });
  committed.verified.total = claimed.total;
  check_itself(run, job, claimed.target.folder(), committed);
  committed.left_behind = claimed.target.publish(run.comm);
  committed.commit_seconds = seconds_since(start);
  return committed;
}

}  // namespace reshard
