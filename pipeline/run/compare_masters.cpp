#include "pipeline/run/compare_masters.hpp"

#include "core/base/activity.hpp"
#include "core/base/text.hpp"
#include "core/io/file_set.hpp"
#include "stages/read/extent_reader.hpp"
#include "stages/verify/master_check.hpp"

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

MasterFindings look_again(PlannedJob const& job, StateCheck const& check) {
  FileSet files(job.source.files, FileSet::Access::read);
  ExtentReader reader(files, job.plan.source.views);
  return compare_masters(*job.plan.model, job.plan.source, check,
                         [&](std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
                           Extent const extent{file, offset, into.size(), 0};
                           reader.read({&extent, 1}, into.data());
                         });
}

[[noreturn]] void refuse(JobSpec const& spec, PlannedJob const& job,
                         std::vector<StateCheck const*> const& wrong) {
  MasterFindings const found = look_again(job, *wrong.front());
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
