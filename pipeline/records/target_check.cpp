#include "pipeline/records/target_check.hpp"

#include <set>

#include "core/base/text/text.hpp"

namespace reshard {
namespace {

/// Files that hold something of what has a digest.
std::string files_of(JobPlan const& plan, DigestWork const& work, DigestId digest) {
  std::set<std::uint32_t> files;
  for (ShareRegion const& region : work.regions)
    if (work.share(region.to).digest == digest) files.insert(region.src_file);
  std::vector<std::string> names;
  for (std::uint32_t const file : files) names.push_back(plan.target.files[file]);
  return listed(names, 4);
}

}  // namespace

std::string tensor_name(JobPlan const& plan, DigestId digest) {
  std::size_t const tensors = plan.model->tensors().size();
  if (index(digest) < tensors)
    return fmt::format("'{}'", plan.model->tensors()[index(digest)].name);
  OpaqueCopy const& copy = plan.opaque[index(digest) - tensors];
  return fmt::format("the object at byte {} of {}", copy.dst_offset_bytes,
                     plan.target.files[copy.dst_file]);
}

std::string cell_name(JobPlan const& plan, Cell const& cell) {
  DigestId const digest = plan.plan.digest_of(cell);
  if (digest != DigestId::none) return tensor_name(plan, digest);
  Region const region = plan.plan.first_region_of(cell);
  return fmt::format("the tensor at byte {} of {}", region.dst_offset_bytes,
                     plan.target.files[region.to]);
}

DigestWork target_digest_work(JobPlan const& plan) {
  DigestWork work = digest_work(*plan.model, plan.target, DigestScope::all);
  for (OpaqueCopy const& copy : plan.opaque) {
    auto const share = ShareId(work.shares.size());
    work.shares.push_back({DigestId(work.tensor_bytes.size()), 0, share});
    work.tensor_bytes.push_back(copy.bytes);
    if (copy.bytes > 0)
      work.regions.push_back({copy.dst_file, share, copy.dst_offset_bytes, 0, copy.bytes, 0, 0});
  }
  return work;
}

void expect_target(JobPlan const& plan, DigestWork const& work, ScanResult const& found,
                   TargetFacts const& expected) {
  std::vector<std::string> faults;
  for (std::size_t f = 0; f < found.files.size(); ++f)
    if (found.files[f].crc64 != expected.file_digests[f])
      faults.push_back(fmt::format("{}: CRC-64 {} on the device, {} as it was written",
                                   plan.target.files[f], hex64(found.files[f].crc64),
                                   hex64(expected.file_digests[f])));
  std::vector<std::uint64_t> const digests = tensor_digests(work, found.shares);
  for (std::uint32_t t = 0; t < digests.size(); ++t)
    if (digests[t] != expected.digests[t])
      faults.push_back(fmt::format("{}: digest {} in the target ({}), {} in the source",
                                   tensor_name(plan, DigestId(t)), hex64(digests[t]),
                                   files_of(plan, work, DigestId(t)), hex64(expected.digests[t])));
  for (ShareId const differing : differing_replicas(work, found.shares)) {
    PieceShare const& one = work.share(differing);
    Blob const& blob = plan.target.blobs[one.blob];
    Blob const& other = plan.target.blobs[work.share(one.same_as).blob];
    faults.push_back(
        fmt::format("{}: '{}' in {} and '{}' in {} should be the same bytes, but differ",
                    tensor_name(plan, one.digest), blob.name, plan.target.files[blob.file],
                    other.name, plan.target.files[other.file]));
  }
  if (faults.empty()) return;
  fail(
      ErrorKind::self_check,
      "the target is not what it should be: {}. Nothing was published. Memory, a disk or the network has changed bytes: look for hardware errors on "
      "these hosts, then run again.",
      listed(faults, 8));
}

std::vector<TensorDigest> tensor_list(Model const& model, Catalog const& catalog, bool with_axes,
                                      std::span<std::uint64_t const> digests,
                                      std::span<int const> adds) {
  std::vector<TensorDigest> list;
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    if (!model.exists(TensorId(t)) || catalog.tensors[t].empty()) continue;
    TensorDigest tensor;
    tensor.name = model.tensors()[t].name;
    tensor.dtype = name(catalog.blobs[catalog.tensors[t].blob(0)].dtype);
    tensor.shape = logical_shape(model, TensorId(t));
    if (with_axes)
      for (LogicalAxis const& axis : model.tensors()[t].axes)
        tensor.axes.push_back(model.axes()[axis.axis].name);
    tensor.crc64 = digests[t];
    if (t < adds.size()) tensor.add = adds[t];
    list.push_back(std::move(tensor));
  }
  return list;
}

}  // namespace reshard
