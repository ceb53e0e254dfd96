#include "pipeline/records/source_manifest.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "core/plan/equal/digest_work.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Records of files by their paths, which count from the folder of the record. What a container
/// records of itself has neither files nor a folder.
template <class Record>
class FilesByPath {
 public:
  FilesByPath(std::vector<Record> const& records, fs::path const& root)
      : root_(root.empty() ? "" : full_path(root).generic_string() + "/") {
    records_.reserve(records.size());
    for (Record const& record : records) records_.emplace(record.path, &record);
  }

  Record const* find(fs::path const& file) const {
    if (records_.empty()) return nullptr;
    std::string const path = full_path(file).generic_string();
    if (!path.starts_with(root_)) return nullptr;
    auto const found = records_.find(std::string_view(path).substr(root_.size()));
    return found == records_.end() ? nullptr : found->second;
  }

 private:
  std::string root_;  ///< with a slash at its end
  std::unordered_map<std::string_view, Record const*> records_;
};
using FileRecords = FilesByPath<FileRecord>;

/// Whether the manifest lists every file of the source. One that is listed with another size is an
/// Error of kind source.
bool speaks_of(Manifest const& manifest, Checkpoint const& source, fs::path const& place) {
  FileRecords const records(manifest.files, place);
  for (std::size_t f = 0; f < source.own_files(); ++f)
    if (records.find(source.files[f]) == nullptr) return false;
  for (std::size_t f = 0; f < source.own_files(); ++f) {
    fs::path const& file = source.files[f];
    auto const size = static_cast<std::uint64_t>(source.stamps.taken[f].bytes);
    if (std::uint64_t const recorded = records.find(file)->size_bytes; size != recorded)
      fail(ErrorKind::source,
           "{}: has {} bytes, {} records {}. Restore it from a copy; or, if it was changed on "
           "purpose, remove the {} or set source.verify = \"off\".",
           file.string(), size, (place / manifest_name).string(), recorded, manifest_name);
  }
  return true;
}

/// Digests that HDF5 containers have themselves.
std::optional<Manifest> own_record(Checkpoint const& source) {
  if (source.logical.digests.empty()) return std::nullopt;
  Manifest manifest;
  manifest.tensors = source.logical.digests;
  return manifest;
}

/// Whether what the plan reads of a tensor is what is stored.
bool read_as_stored(JobPlan const& plan, std::size_t tensor) {
  for (std::uint32_t const blob : plan.source.tensors[tensor].blobs())
    if (plan.source.blobs[blob].file >= plan.source.real_files()) return false;
  return !plan.source.tensors[tensor].empty();
}

/// Files of a tensor that are not what the manifest says.
void add_changed_files(FileRecords const& records, JobPlan const& plan, std::size_t tensor,
                       std::set<std::string>& changed) {
  for (std::uint32_t const blob : plan.source.tensors[tensor].blobs()) {
    fs::path const path = plan.source.files[plan.source.blobs[blob].file];
    FileRecord const* const record = records.find(path);
    if (record != nullptr && !changed.contains(path.string()) &&
        record_of(path, path.parent_path()).xxh3 != record->xxh3)
      changed.insert(path.string());
  }
}

/// The schemes of parts beside weights (QuantScheme::beside), where the job was asked for weights
/// alone: then it looks for parts, and has none of any scheme.
std::set<std::string> schemes_left_out(Model const& model) {
  std::set<std::string> result;
  for (QuantScheme const& scheme : model.schemes()) {
    std::string const word = "." + scheme.name + ".";
    if (std::ranges::any_of(model.tensors(), [&](LogicalTensor const& tensor) {
          return tensor.name.find(word) != std::string::npos;
        }))
      return {};
    if (scheme.beside) result.insert(scheme.name);
  }
  return result;
}

/// Whether this is a part (WEIGHT.SCHEME.PART) of a weight that the job reads as what its parts
/// stand for, or without what stands beside it.
bool is_part_of_computed(JobPlan const& plan, std::string const& name,
                         std::set<std::string> const& left_out) {
  std::size_t const part = name.rfind('.');
  std::size_t const scheme =
      part == std::string::npos || part == 0 ? std::string::npos : name.rfind('.', part - 1);
  if (scheme == std::string::npos) return false;
  std::optional<TensorId> const weight = plan.model->find_tensor(name.substr(0, scheme));
  if (!weight) return false;
  if (left_out.contains(name.substr(scheme + 1, part - scheme - 1))) return true;
  std::size_t const at = index(*weight);
  return !plan.source.tensors[at].empty() && !read_as_stored(plan, at);
}

/// Whether a recorded tensor is a state of a parameter ("attn.q (exp_avg)", a Model's name for it),
/// or has the key of one.
bool is_state(JobPlan const& plan, std::string const& name) {
  std::size_t const slot = name.rfind(" (");
  return is_optimizer_key(name) || (slot != std::string::npos && name.ends_with(')') &&
                                    plan.model->find_tensor(name.substr(0, slot)).has_value());
}

/// Recorded tensors that the source does not have; an optimizer's, and those that no map describes,
/// may have been left out by request.
void add_missing(Manifest const& manifest, JobPlan const& plan, std::vector<std::string>& faults) {
  std::set<std::string> const left_out = schemes_left_out(*plan.model);
  for (TensorDigest const& recorded : manifest.tensors) {
    std::optional<TensorId> const t = plan.model->find_tensor(recorded.name);
    if (!t && (plan.absent.left_out.tensors > 0 || plan.absent.by_prefix)) continue;
    if (t && !plan.source.tensors[index(*t)].empty()) continue;
    if (t &&
        std::ranges::any_of(plan.copies.same_as, [&](auto const& one) { return one.first == *t; }))
      continue;  // compared with the tensor whose bytes it shares in the target
    if (!is_state(plan, recorded.name) && !is_part_of_computed(plan, recorded.name, left_out))
      faults.push_back(fmt::format("'{}' is recorded, but missing", recorded.name));
  }
}

/// The records of tensors by their names.
class TensorRecords {
 public:
  explicit TensorRecords(Manifest const& manifest) {
    for (TensorDigest const& tensor : manifest.tensors) known_.emplace(tensor.name, &tensor);
  }

  /// Of a tensor that the plan reads as it is stored; null where there is none, or one of another
  /// shape or dtype.
  TensorDigest const* find(JobPlan const& plan, std::size_t tensor) const {
    auto const found = known_.find(plan.model->tensors()[tensor].name);
    if (found == known_.end() || plan.plan.tensor_bytes[tensor] == 0 ||
        !read_as_stored(plan, tensor))
      return nullptr;
    TensorDigest const& recorded = *found->second;
    Blob const& blob = plan.source.blobs[plan.source.tensors[tensor].blob(0)];
    bool const same = recorded.shape == logical_shape(*plan.model, TensorId(tensor)) &&
                      recorded.dtype == name(blob.dtype);
    return same ? &recorded : nullptr;
  }

 private:
  std::unordered_map<std::string_view, TensorDigest const*> known_;
};

/// Whether each file is the one of which the manifest speaks, not changed since it was recorded.
bool is_fresh(Manifest const& manifest, Checkpoint const& source) {
  FilesByPath<StampedFile> const stamps(manifest.stamps, manifest.root);
  for (std::size_t f = 0; f < source.files.size(); ++f) {
    StampedFile const* const known =
        f < source.own_files() ? stamps.find(source.files[f]) : nullptr;
    if (known == nullptr || known->stamp.inode == 0) return false;
    FileStamp now = source.stamps.taken[f];
    now.device = known->stamp.device;
    if (now != known->stamp) return false;
  }
  return true;
}

}  // namespace

std::vector<std::optional<std::uint64_t>> fresh_digests(Manifest const& manifest,
                                                        Checkpoint const& source,
                                                        JobPlan const& plan) {
  std::vector<std::optional<std::uint64_t>> digests(plan.plan.tensor_bytes.size());
  if (!is_fresh(manifest, source)) return digests;
  TensorRecords const records(manifest);
  for (std::size_t t = 0; t < plan.model->tensors().size(); ++t)
    if (TensorDigest const* const recorded = records.find(plan, t)) digests[t] = recorded->crc64;
  return digests;
}

std::optional<Manifest> manifest_of(fs::path const& path, Checkpoint const& source,
                                    std::vector<std::string>& warnings) {
  fs::path const folder = full_path(path);
  for (fs::path const& place : {folder, folder.parent_path()}) {
    auto manifest = find_manifest(place);
    if (!manifest) continue;
    manifest->root = place;
    // Without files its job did not read the target back: the digests are of this folder's tensors
    // all the same.
    if (manifest->files.empty() ? place == folder : speaks_of(*manifest, source, place))
      return manifest;
    if (place == folder)
      warnings.push_back(fmt::format("{} lists other files than this checkpoint has: it is ignored",
                                     (place / manifest_name).string()));
    break;
  }
  return own_record(source);
}

std::size_t check_source_digests(Manifest const& manifest, Checkpoint const& source,
                                 JobPlan const& plan, std::span<std::uint64_t const> digests,
                                 std::vector<bool> const& taken) {
  FileRecords const records(manifest.files, manifest.root);
  TensorRecords const tensors(manifest);
  std::vector<std::string> faults;
  std::set<std::string> changed;
  std::size_t compared = 0;
  for (std::size_t t = 0; t < plan.model->tensors().size(); ++t) {
    TensorDigest const* const found = tensors.find(plan, t);
    bool const of_others = source.others.taken_files > 0 && plan.model->layer_axis(TensorId(t));
    if (found == nullptr || (!plan.plan.unread.empty() && plan.plan.unread[t]) ||
        (!taken.empty() && taken[t]) || of_others)
      continue;
    TensorDigest const& recorded = *found;
    ++compared;
    if (recorded.crc64 == digests[t]) continue;
    faults.push_back(fmt::format("'{}' has the digest {}, {} is recorded", recorded.name,
                                 hex64(digests[t]), hex64(recorded.crc64)));
    if (faults.size() <= 8) add_changed_files(records, plan, t, changed);
  }
  if (!plan.changed && (compared > 0 || !plan.plan.unread.empty() || !taken.empty()))
    add_missing(manifest, plan, faults);
  if (faults.empty()) return compared;
  std::vector<std::string> const files(changed.begin(), changed.end());
  fail(
      ErrorKind::source,
      "{}: the source is not what was recorded when it was written: {}. {}. Nothing was published. Restore the files from a copy; or, if they were "
      "changed on purpose, remove the {}.",
      source.files.front().parent_path().string(), listed(faults, 8),
      files.empty()
          ? "No recorded file is known to have changed: perhaps bytes changed while they were "
            "read"
          : "Changed: " + listed(files, 8),
      manifest_name);
}

}  // namespace reshard
