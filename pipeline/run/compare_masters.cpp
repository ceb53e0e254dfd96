#include "pipeline/run/compare_masters.hpp"

#include <algorithm>

#include "core/base/activity.hpp"
#include "core/base/text.hpp"
#include "pipeline/verify/look_at_masters.hpp"

namespace reshard {
namespace {

std::vector<StateCheck const*> wrong_masters(Plan const& plan,
                                             std::span<std::uint64_t const> digests) {
  std::vector<StateCheck const*> wrong;
  for (StateCheck const& check : plan.checks)
    if (check.rule == StateRule::rounds_to_weight &&
        digests[index(check.rounded)] != digests[index(digest_of(check.weight))])
      wrong.push_back(&check);
  return wrong;
}

[[noreturn]] void refuse(JobSpec const& spec, PlannedJob const& job,
                         std::vector<StateCheck const*> const& wrong) {
  MasterFindings const found = look_at_masters(job.source, job.plan, *wrong.front());
  fail(
      ErrorKind::source,
      "{}: the optimizer state of '{}' is not that of its weight: {} of {} master weights do not "
      "round to it, first at {}. {} of {} tensors are so. Nothing was published. Megatron-Core 0.15 "
      "to 0.19 with several gradient buckets saved shifted state (PR #5077); another layout in args "
      "and weights edited after the save look the same. Resume from another checkpoint, or set "
      "source.optimizer = \"drop\".",
      spec.source.path, job.plan.model->tensor(wrong.front()->weight).name, found.differing,
      found.elements, found.first, wrong.size(),
      std::ranges::count(job.plan.plan.checks, StateRule::rounds_to_weight, &StateCheck::rule));
}

}  // namespace

StateProof prove_states(JobSpec const& spec, PlannedJob const& job,
                        std::span<std::uint64_t const> digests, Comm const& comm) {
  StateProof proof;
  Plan const& plan = job.plan.plan;
  if (plan.checks.empty()) return proof;
  begin_phase("comparing master weights with their weights");
  auto const wrong = wrong_masters(plan, digests);
  together(comm, [&] {
    if (!wrong.empty() && comm.rank() == 0) refuse(spec, job, wrong);
  });
  for (StateCheck const& check : plan.checks)
    ++(check.rule == StateRule::rounds_to_weight ? proof.masters : proof.moments);
  return proof;
}

}  // namespace reshard
