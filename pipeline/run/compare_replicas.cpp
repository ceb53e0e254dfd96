#include "pipeline/run/compare_replicas.hpp"

#include "core/base/activity.hpp"
#include "core/base/text.hpp"
#include "core/io/file_set.hpp"
#include "stages/read/extent_reader.hpp"
#include "stages/verify/replica_check.hpp"

namespace reshard {
namespace {

std::uint64_t compare_small(JobSpec const& spec, PlannedJob const& job, CatalogReader const& read,
                            Comm const& comm) {
  ReplicaFindings const findings =
      compare_small_replicas(*job.plan.model, job.plan.source, read, comm);
  together(comm, [&] {
    if (findings.faults.empty()) return;
    fail(ErrorKind::source,
         "{}: {}. Nothing was written. Ranks that diverged in training, or a damaged file, cause "
         "this: choose another checkpoint, or set source.replicas = \"first\" to use one of each.",
         spec.source.path, listed(findings.faults, 4));
  });
  return findings.compared;
}

/// Folders of Hugging Face seldom have copies, and then a config.json that ties what was trained
/// apart is likely. Megatron writes a large copy itself, on its last stage.
std::uint64_t compare_tied(JobSpec const& spec, PlannedJob const& job, CatalogReader const& read,
                           Comm const& comm) {
  bool const adapter = !job.plan.model->adapter_ranks().empty();
  bool const shared = !job.plan.same_as.empty();
  if (!adapter && !shared &&
      (job.source.storage != Storage::whole || job.source.names != NameOwner::family))
    return 0;
  ReplicaFindings const findings = compare_copies(*job.plan.model, job.plan.source, read, comm);
  together(comm, [&] {
    if (findings.faults.empty()) return;
    if (adapter)
      fail(ErrorKind::source,
           "{}: {}. The target holds both in one tensor (the A of a fused weight, such as q, k and "
           "v), so they must be equal. Nothing was written. Set target.adapter = \"canonical\" to "
           "keep each.",
           spec.source.path, listed(findings.faults, 4));
    if (shared)
      fail(
          ErrorKind::source,
          "{}: {}. The target has one number for all weights that it stores in one tensor (q, k and "
          "v; gate and up), so theirs must be equal. Nothing was written. Choose a format that "
          "stores these weights apart, or calibrate them together.",
          spec.source.path, listed(findings.faults, 4));
    fail(ErrorKind::source,
         "{}: {}. According to config.json and the map it is a copy, so its values would be "
         "lost. Nothing was written. If config.json has tie_word_embeddings = true, set it to "
         "false to keep both, or set source.replicas = \"first\" to drop the copy.",
         spec.source.path, listed(findings.faults, 4));
  });
  return findings.compared;
}

}  // namespace

std::uint64_t compare_replicas(JobSpec const& spec, PlannedJob const& job, SourceWatch const& watch,
                               Comm const& comm) {
  bool const shared = !job.plan.model->adapter_ranks().empty() || !job.plan.same_as.empty();
  if ((spec.source.replicas != ReplicaChoice::compare && !shared) ||
      (job.plan.plan.replicas_dropped == 0 && !has_copies(job.plan.source)))
    return 0;
  begin_phase("comparing replicas of the source");
  watch.look_at(*job.sources);
  ExtentReader reader(*job.sources, job.plan.source.views);
  auto const read = [&](std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> into) {
    Extent const extent{file, offset_bytes, into.size(), 0};
    reader.read({&extent, 1}, into.data());
  };
  std::uint64_t const small =
      spec.source.replicas == ReplicaChoice::compare ? compare_small(spec, job, read, comm) : 0;
  return small + compare_tied(spec, job, read, comm);
}

}  // namespace reshard
