#include "pipeline/target/target_check.hpp"

#include <set>

#include "core/base/text.hpp"
#include "core/plan/no_tensor.hpp"

namespace reshard {
namespace {

/// Files that hold something of a tensor.
std::string files_of(JobPlan const& plan, DigestWork const& work, std::uint32_t tensor) {
  std::set<std::uint32_t> files;
  for (Region const& region : work.regions)
    if (work.slots[region.dst_file].tensor == tensor) files.insert(region.src_file);
  std::vector<std::string> names;
  for (std::uint32_t const file : files) names.push_back(plan.target.files[file]);
  return listed(names, 4);
}

}  // namespace

std::string tensor_name(JobPlan const& plan, std::uint32_t tensor) {
  std::size_t const tensors = plan.model->tensors().size();
  if (tensor < tensors) return fmt::format("'{}'", plan.model->tensors()[tensor].name);
  OpaqueCopy const& copy = plan.opaque[tensor - tensors];
  return fmt::format("the object at byte {} of {}", copy.dst_offset_bytes,
                     plan.target.files[copy.dst_file]);
}

std::string cell_name(JobPlan const& plan, Cell const& cell) {
  std::uint32_t const tensor =
      cell.digest_count == 0 ? no_tensor : plan.plan.digests[cell.first_digest].dst_file;
  if (tensor != no_tensor) return tensor_name(plan, tensor);
  Region const& region = plan.plan.regions[cell.first_region];
  return fmt::format("the tensor at byte {} of {}", region.dst_offset_bytes,
                     plan.target.files[region.dst_file]);
}

DigestWork target_digest_work(JobPlan const& plan) {
  DigestWork work = digest_work(*plan.model, plan.target, DigestScope::all);
  for (OpaqueCopy const& copy : plan.opaque) {
    auto const slot = narrow<std::uint32_t>(work.slots.size());
    work.slots.push_back({narrow<std::uint32_t>(work.tensor_bytes.size()), 0, slot});
    work.tensor_bytes.push_back(copy.bytes);
    if (copy.bytes > 0)
      work.regions.push_back({copy.dst_file, slot, copy.dst_offset_bytes, 0, copy.bytes, 0, 0});
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
                                   tensor_name(plan, t), hex64(digests[t]), files_of(plan, work, t),
                                   hex64(expected.digests[t])));
  for (std::uint32_t const slot : differing_replicas(work, found.shares)) {
    DigestSlot const& one = work.slots[slot];
    Blob const& blob = plan.target.blobs[one.blob];
    Blob const& other = plan.target.blobs[work.slots[one.same_as].blob];
    faults.push_back(
        fmt::format("{}: '{}' in {} and '{}' in {} should be the same bytes and are not",
                    tensor_name(plan, one.tensor), blob.name, plan.target.files[blob.file],
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
    if (!model.exists(static_cast<int>(t)) || catalog.tensors[t].blobs.empty()) continue;
    TensorDigest tensor;
    tensor.name = model.tensors()[t].name;
    tensor.dtype = name(catalog.blobs[catalog.tensors[t].blobs.front()].dtype);
    tensor.shape = logical_shape(model, static_cast<int>(t));
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
