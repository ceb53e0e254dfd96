#include "pipeline/run/checks/compare_masters.hpp"

#include <algorithm>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/base/threads/activity.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "pipeline/verify/look_at_masters.hpp"
#include "stages/verify/scans/scan.hpp"

namespace reshard {
namespace {

/// Of weights that the target holds as masters only, which no round reads: by number of the logical
/// tensor. Empty where there are none. Collective.
std::vector<std::uint64_t> digests_of_weights(PlannedJob const& job, Comm const& comm) {
  if (!job.plan.weights) return {};
  std::optional<DigestWork> work;
  together(comm, [&] {
    Model model = *job.plan.model;
    for (std::size_t t = 0; t < model.tensors().size(); ++t) model.set_exists(TensorId(t), false);
    for (auto const& [weight, dtype] : job.plan.source.masters) model.set_exists(weight, true);
    work = digest_work(model, *job.plan.weights, DigestScope::distinct);
  });
  std::vector<std::filesystem::path> const files = job.source.files;
  return tensor_digests(*work, scan(comm, files, *work, {}).shares);
}

std::vector<StateCheck const*> wrong_masters(Plan const& plan,
                                             std::span<std::uint64_t const> digests,
                                             std::span<std::uint64_t const> of_weights) {
  std::vector<StateCheck const*> wrong;
  for (StateCheck const& check : plan.checks) {
    if (check.rule != StateRule::rounds_to_weight) continue;
    auto const& expected = check.state == check.weight ? of_weights : digests;
    if (digests[index(check.rounded)] != expected[index(digest_of(check.weight))])
      wrong.push_back(&check);
  }
  return wrong;
}

/// The check as the source has it: masters that took the place of weights are in their own again.
StateCheck check_in_source(Model const& model, Catalog const& source, StateCheck check) {
  for (std::size_t s = 1; s < model.slots().size() && check.state == check.weight; ++s)
    if (TensorId const state = model.in_slot(check.weight, SlotId(s));
        is_master_slot(model.slots()[s]) && !source.tensors[index(state)].empty())
      check.state = state;
  return check;
}

[[noreturn]] void refuse(JobSpec const& spec, PlannedJob const& job,
                         std::vector<StateCheck const*> const& wrong) {
  Catalog const& catalog = job.plan.weights ? *job.plan.weights : job.plan.source;
  MasterFindings const found =
      look_at_masters(job.source, *job.plan.model, catalog,
                      check_in_source(*job.plan.model, catalog, *wrong.front()));
  fail(ErrorKind::source,
       "{}: the optimizer state of '{}' is not that of its weight: {} of {} master weights do "
       "not round to it, first at {}. This is so for {} of {}. Nothing was published. "
       "Megatron-Core 0.15 to 0.19 with several gradient buckets saved shifted state (PR "
       "#5077); another layout in args, weights edited after the save and remainders of a "
       "precision-aware optimizer look the same. Resume from another checkpoint, or set "
       "source.optimizer = \"drop\".",
       spec.source.path, job.plan.model->tensor(wrong.front()->weight).name, found.differing,
       found.elements, found.first, wrong.size(),
       counted(
           std::ranges::count(job.plan.plan.checks, StateRule::rounds_to_weight, &StateCheck::rule),
           "tensor"));
}

}  // namespace

StateProof prove_states(JobSpec const& spec, PlannedJob const& job,
                        std::span<std::uint64_t const> digests, Comm const& comm) {
  StateProof proof;
  Plan const& plan = job.plan.plan;
  if (plan.checks.empty()) return proof;
  begin_phase("comparing master weights with their weights");
  auto const wrong = wrong_masters(plan, digests, digests_of_weights(job, comm));
  together(comm, [&] {
    if (!wrong.empty() && comm.rank() == 0) refuse(spec, job, wrong);
  });
  for (StateCheck const& check : plan.checks)
    ++(check.rule == StateRule::rounds_to_weight ? proof.masters : proof.moments);
  return proof;
}

}  // namespace reshard
