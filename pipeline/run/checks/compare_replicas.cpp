#include "pipeline/run/checks/compare_replicas.hpp"

#include <map>
#include <utility>

#include "core/base/text/text.hpp"
#include "core/base/threads/activity.hpp"
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
    // The record tells which of the files is as it was written.
    std::string const record =
        job.manifest ? fmt::format(" `reshard verify {}` names damaged files.", spec.source.path)
                     : "";
    fail(
        ErrorKind::source,
        "{}: {}. Nothing was written. Ranks that diverged in training, or a damaged file, cause "
        "this: choose another checkpoint, or set source.replicas = \"first\" to use one of each.{}",
        spec.source.path, listed(findings.faults, 4), record);
  });
  return findings.compared;
}

/// Records of zip archives with equal sizes and CRC-32: Megatron writes the embedding a second time
/// itself, on its last stage. What a job reads of them is compared with their CRC-32, too.
KnownEqual equal_records(Checkpoint const& source, Catalog const& catalog) {
  std::map<CopySpan, std::uint32_t> known;
  if (has_copies(catalog))
    for (StoredRecord const& record : source.records)
      if (record.crc32)
        known.emplace(CopySpan{record.file, record.offset_bytes, record.size_bytes}, *record.crc32);
  return [known = std::move(known)](CopySpan const& a, CopySpan const& b) {
    auto const of_a = known.find(a);
    auto const of_b = known.find(b);
    return of_a != known.end() && of_b != known.end() && of_a->second == of_b->second;
  };
}

/// The source with the copies that its stored names mean (TensorCopies::declared).
Catalog with_declared(JobPlan const& plan) {
  Catalog const& source = plan.source;
  Catalog result;
  result.files = source.files;
  result.views = source.views;
  result.blobs = source.blobs;
  result.tensors.resize(source.tensors.size());
  for (auto const& [copy, of] : plan.copies.declared) {
    TensorPieces& pieces = result.tensors[index(of)];
    if (pieces.empty()) pieces = source.tensors[index(of)];
    TensorPieces const& copies = source.tensors[index(copy)];
    for (std::size_t i = 0; i < copies.size(); ++i) {
      Piece piece = copies[i];
      piece.tensor = of;
      pieces.add(piece, copies.blob(i), true);
    }
  }
  return result;
}

ReplicaFindings find_copies(PlannedJob const& job, CatalogReader const& read, Comm const& comm) {
  JobPlan const& plan = job.plan;
  KnownEqual const known = equal_records(job.source, plan.source);
  if (plan.copies.declared.empty())
    return compare_copies(*plan.model, plan.source, read, comm, known);
  return compare_copies(*plan.model, with_declared(plan), read, comm, known);
}

/// Advice for a tensor that was declared to be a copy and is none.
std::string way_out_of_copies(PlannedJob const& job) {
  std::string const first = "set source.replicas = \"first\"";
  if (!job.plan.copies.declared.empty())
    return fmt::format(
        "According to the target's config.json and the map it is a copy: programs that load the "
        "target would tie the two. Nothing was written. If config.json has tie_word_embeddings = "
        "true, set it to false in a folder for target.reference to keep both, or {} to write both "
        "as they are",
        first);
  if (job.source.names == NameOwner::megatron)
    return fmt::format(
        "According to the checkpoint's settings it is a copy, so its values would be lost. Nothing "
        "was written. Ranks that diverged in training, or settings of another run "
        "(untie_embeddings_and_output_weights), cause this: choose another checkpoint, or {} to "
        "drop the copy",
        first);
  return fmt::format(
      "According to config.json and the map it is a copy, so its values would be lost. Nothing was "
      "written. If config.json has tie_word_embeddings = true, set it to false to keep both, or {} "
      "to drop the copy",
      first);
}

/// Compares copies by declaration: a tied output layer, the embedding of layers for multi-token
/// prediction, and tensors that a target holds in the bytes of another one.
std::uint64_t compare_tied(JobSpec const& spec, PlannedJob const& job, CatalogReader const& read,
                           Comm const& comm) {
  bool const adapter = !job.plan.model->adapter_ranks().empty();
  bool const shared = !job.plan.copies.same_as.empty();
  ReplicaFindings const findings = find_copies(job, read, comm);
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
    fail(ErrorKind::source, "{}: {}. {}.", spec.source.path, listed(findings.faults, 4),
         way_out_of_copies(job));
  });
  return findings.compared;
}

CatalogReader reader_of(ExtentReader& reader) {
  return [&reader](std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> into) {
    Extent const extent{file, offset_bytes, into.size(), 0};
    reader.read({&extent, 1}, into.data());
  };
}

}  // namespace

std::uint64_t compare_replicas(JobSpec const& spec, PlannedJob const& job, SourceWatch const& watch,
                               Comm const& comm) {
  bool const shared = !job.plan.model->adapter_ranks().empty() || !job.plan.copies.same_as.empty();
  if ((spec.source.replicas != ReplicaChoice::compare && !shared) ||
      (job.plan.plan.replicas_dropped == 0 && !has_copies(job.plan.source) &&
       job.plan.copies.declared.empty()))
    return 0;
  begin_phase("comparing replicas of the source");
  watch.look_at(*job.sources);
  ExtentReader reader(*job.sources, job.plan.source.views);
  CatalogReader const read = reader_of(reader);
  std::uint64_t const small =
      spec.source.replicas == ReplicaChoice::compare ? compare_small(spec, job, read, comm) : 0;
  return small + compare_tied(spec, job, read, comm);
}

RowsBehind look_at_padding_left_out(PlannedJob const& job, SourceWatch const& watch,
                                    Comm const& comm) {
  if (job.plan.listing.padding.empty()) return {};
  begin_phase("reading rows behind the vocabulary");
  watch.look_at(*job.sources);
  ExtentReader reader(*job.sources, job.plan.source.views);
  return look_behind_vocabulary(*job.plan.model, job.plan.listing.padding, reader_of(reader), comm);
}

}  // namespace reshard
