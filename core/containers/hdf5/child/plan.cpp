#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "core/containers/hdf5/child/check_found.hpp"
#include "core/containers/hdf5/file_types.hpp"
#include "core/containers/hdf5/frame.hpp"
#include "core/containers/hdf5/layout.hpp"
#include "core/containers/hdf5/names.hpp"
#include "core/containers/hdf5/text_attribute.hpp"

namespace reshard::hdf5 {
namespace {

constexpr Calls calls = {ErrorKind::internal, "the skeleton of an HDF5 file"};
/// Datasets from this size on begin at a multiple of the alignment.
constexpr hsize_t aligned_from_bytes = std::uint64_t{64} << 10U;
/// libhdf5 allocates its metadata in blocks of this size, so that they are contiguous.
constexpr hsize_t metadata_block_bytes = std::uint64_t{1} << 20U;

[[noreturn]] void refuse(std::string_view what, std::string_view name, std::string_view why,
                         std::string_view next) {
  fail(ErrorKind::usage, "{} '{}': {}, which an HDF5 container cannot hold. {}", what, shown(name),
       why, next);
}

void check_name(std::string_view what, std::string_view name,
                std::unordered_set<std::string_view>& names) {
  if (auto const problem = name_problem(name))
    refuse(what, name, "the name cannot be used, " + *problem, "Map it to another name.");
  if (!names.insert(name).second)
    refuse(what, name, "the name appears twice",
           "Correct the map so that every name appears once.");
}

void check_dataset(DatasetSpec const& spec) {
  auto const no = [&](std::string const& why, std::string_view next) {
    refuse("tensor", spec.name, why, next);
  };
  if (spec.shape.size() > largest_rank)
    no(fmt::format("it has {} dimensions, more than {}", spec.shape.size(), largest_rank),
       "Reshape it.");
  if (!tensor_bytes(spec.dtype, spec.shape))
    no(fmt::format("shape {} of {} is not an integer number of bytes in its last dimension, below "
                   "2^61 in all",
                   shown_shape(spec.shape), name(spec.dtype)),
       "Change the shape.");
  if (!spec.axes.empty() && spec.axes.size() != spec.shape.size())
    no(fmt::format("it has {} dimensions and {} labels", spec.shape.size(), spec.axes.size()),
       "Give none, or one for each dimension.");
  if (!std::ranges::all_of(
          spec.axes, [](std::string const& axis) { return !axis.empty() && is_line(axis); }) ||
      !is_line(spec.domain))
    no("a label or the domain is empty, not UTF-8 or has a control character", "Rename the axis.");
}

void check_attributes(RootAttributes const& attributes) {
  std::unordered_set<std::string_view> keys(own_attributes.begin(), own_attributes.end());
  for (auto const& [key, value] : attributes) {
    if (key.empty() || !is_line(key) || !is_text(value) || value.size() > largest_value_bytes)
      refuse("root attribute", key,
             fmt::format("it is not UTF-8 or longer than {} bytes", largest_value_bytes),
             "Change it.");
    if (!keys.insert(key).second)
      refuse("root attribute", key, "it appears twice or is reserved by the format", "Rename it.");
  }
}

void check_all(std::span<DatasetSpec const> datasets, std::span<ObjectSpec const> objects,
               RootAttributes const& attributes) {
  std::unordered_set<std::string_view> tensor_names;
  std::unordered_set<std::string_view> object_names;
  std::uint64_t total = 0;
  constexpr std::string_view what = "bytes of one HDF5 file";
  for (DatasetSpec const& dataset : datasets) {
    check_name("tensor", dataset.name, tensor_names);
    check_dataset(dataset);
    total = checked_add(total, *tensor_bytes(dataset.dtype, dataset.shape), ErrorKind::usage, what);
  }
  for (ObjectSpec const& object : objects) {
    check_name("object", object.name, object_names);
    total = checked_add(total, object.size_bytes, ErrorKind::usage, what);
  }
  constexpr std::uint64_t most = std::uint64_t{1} << 61U;
  if (total >= most)
    fail(ErrorKind::usage, "{}: {} in all, at most {} fit. Write several files.", what, total,
         most - 1);
  check_attributes(attributes);
}

Handle creation_properties() {
  Handle properties =
      calls.take(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "create dataset properties");
  calls.done(H5Pset_layout(properties.id(), H5D_CONTIGUOUS), "choose the contiguous layout");
  calls.done(H5Pset_alloc_time(properties.id(), H5D_ALLOC_TIME_EARLY),
             "choose when storage is allocated");
  calls.done(H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER), "disable fill values");
  calls.done(H5Pset_obj_track_times(properties.id(), false), "disable time stamps");
  return properties;
}

Handle create_file(std::string const& path, std::uint64_t alignment_bytes) {
  Handle const access = file_access(calls);
  // Not sec2, which needs the real path of a link: the file in memory has none.
  calls.done(H5Pset_fapl_stdio(access.id()), "choose its file driver");
  calls.done(H5Pset_alignment(access.id(), aligned_from_bytes, alignment_bytes),
             "choose an alignment");
  calls.done(H5Pset_meta_block_size(access.id(), metadata_block_bytes), "choose a block size");
  calls.done(H5Pset_small_data_block_size(access.id(), 0), "choose a block size");
  Handle const creation = calls.take(H5Pcreate(H5P_FILE_CREATE), H5Pclose,
                                     "create file "
                                     "properties");
  calls.done(H5Pset_obj_track_times(creation.id(), false), "disable time stamps");
  return calls.take(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()), H5Fclose,
                    "create it");
}

Handle create_group(hid_t file, char const* name) {
  Handle const creation =
      calls.take(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "create group properties");
  calls.done(H5Pset_obj_track_times(creation.id(), false), "disable time stamps");
  return calls.take(H5Gcreate2(file, name, H5P_DEFAULT, creation.id(), H5P_DEFAULT), H5Gclose,
                    "create a group");
}

/// The digests of a complete container; nullopt before.
using Digests = std::optional<std::span<std::uint64_t const>>;

/// A container without its data, in memory.
class Skeleton {
 public:
  /// Without digests it is not complete, and has zeros for them.
  Skeleton(RootAttributes const& attributes, std::uint64_t alignment_bytes, Digests const& digests)
      : digests_(digests),
        file_(create_file(memory_.path(), alignment_bytes)),
        types_(calls),
        properties_(creation_properties()) {
    create_text(calls, file_.id(), format_attribute, format_value);
    create_text(calls, file_.id(), version_attribute, version_value);
    create_text(calls, file_.id(), software_attribute, software_value);
    Handle const space = calls.take(H5Screate(H5S_SCALAR), H5Sclose, "create a scalar dataspace");
    hid_t const id = H5Acreate2(file_.id(), complete_attribute, H5T_STD_U8LE, space.id(),
                                H5P_DEFAULT, H5P_DEFAULT);
    Handle const complete = calls.take(id, H5Aclose, "create an attribute");
    std::uint8_t const done = digests ? 1 : 0;
    calls.done(H5Awrite(complete.id(), H5T_STD_U8LE, &done), "write an attribute");
    for (auto const& [key, value] : attributes) create_text(calls, file_.id(), key.c_str(), value);
  }

  /// The places of the datasets of one group, 0 where there are no bytes.
  std::vector<std::uint64_t> add_tensors(std::span<DatasetSpec const> specs) {
    Handle const group = create_group(file_.id(), tensors_group);
    std::vector<std::uint64_t> offsets;
    for (DatasetSpec const& spec : specs) {
      Handle const dataset = create_dataset(group.id(), spec.name, types_.of(spec.dtype),
                                            stored_extents(spec.dtype, spec.shape));
      create_text(calls, dataset.id(), dtype_attribute, name(spec.dtype));
      create_text(calls, dataset.id(), crc64_attribute, next_digest());
      if (!spec.axes.empty()) create_labels(calls, dataset.id(), spec.axes);
      if (!spec.domain.empty()) create_text(calls, dataset.id(), domain_attribute, spec.domain);
      offsets.push_back(placed(dataset.id(), *tensor_bytes(spec.dtype, spec.shape)));
    }
    return offsets;
  }

  std::vector<std::uint64_t> add_objects(std::span<ObjectSpec const> specs) {
    Handle const group = create_group(file_.id(), objects_group);
    std::vector<std::uint64_t> offsets;
    for (ObjectSpec const& spec : specs) {
      Handle const dataset =
          create_dataset(group.id(), spec.name, types_.of(DType::u8), {spec.size_bytes});
      create_text(calls, dataset.id(), crc64_attribute, next_digest());
      offsets.push_back(placed(dataset.id(), spec.size_bytes));
    }
    return offsets;
  }

  void finish(ContainerPlan& plan) {
    if (!file_.close()) calls.failed("close it");
    plan.size_bytes = memory_.size_bytes();
    plan.frame = memory_.written_outside(std::move(spans_));
  }

 private:
  Handle create_dataset(hid_t group, std::string_view name, hid_t type,
                        std::vector<hsize_t> const& extents) const {
    hid_t const extent = extents.empty() ? H5Screate(H5S_SCALAR)
                                         : H5Screate_simple(static_cast<int>(extents.size()),
                                                            extents.data(), nullptr);
    Handle const space = calls.take(extent, H5Sclose, "create a dataspace");
    hid_t const id = H5Dcreate2(group, link_from_name(name).c_str(), type, space.id(), H5P_DEFAULT,
                                properties_.id(), H5P_DEFAULT);
    return calls.at(name).take(id, H5Dclose, "create a dataset");
  }

  std::uint64_t placed(hid_t dataset, std::uint64_t size_bytes) {
    if (size_bytes == 0) return 0;
    haddr_t const offset = H5Dget_offset(dataset);
    if (offset == HADDR_UNDEF) calls.failed("set the offset of a dataset");
    spans_.push_back({offset, offset + size_bytes});
    return offset;
  }

  std::string next_digest() {
    std::uint64_t const digest = digests_ ? (*digests_)[next_digest_++] : 0;
    return fmt::format("{:0{}x}", digest, digest_digits);
  }

  Digests digests_;
  std::size_t next_digest_ = 0;
  SparseMemory memory_;
  Handle file_;
  FileTypes types_;
  Handle properties_;
  std::vector<ByteRange> spans_;
};

}  // namespace

static ContainerPlan plan_with(std::span<DatasetSpec const> datasets,
                               std::span<ObjectSpec const> objects,
                               RootAttributes const& attributes, Digests const& digests,
                               std::uint64_t alignment_bytes) {
  if (alignment_bytes == 0)
    fail(ErrorKind::usage,
         "the alignment of an HDF5 container is 0 bytes. Choose 1 or more, such as 4096.");
  check_all(datasets, objects, attributes);
  static std::mutex one_at_a_time;  // libhdf5 has state of its own, and no locks
  std::lock_guard const lock(one_at_a_time);
  Quiet const quiet;
  Skeleton skeleton(attributes, alignment_bytes, digests);
  ContainerPlan plan;
  plan.offset_bytes = skeleton.add_tensors(datasets);
  plan.object_offset_bytes = skeleton.add_objects(objects);
  skeleton.finish(plan);
  return plan;
}

ContainerPlan plan_container(std::span<DatasetSpec const> datasets,
                             std::span<ObjectSpec const> objects, RootAttributes const& attributes,
                             std::uint64_t alignment_bytes) {
  return plan_with(datasets, objects, attributes, std::nullopt, alignment_bytes);
}

std::vector<FileSegment> finished_frame(std::span<DatasetSpec const> datasets,
                                        std::span<ObjectSpec const> objects,
                                        RootAttributes const& attributes,
                                        std::span<std::uint64_t const> digests,
                                        std::uint64_t alignment_bytes) {
  RESHARD_EXPECT(digests.size() == datasets.size() + objects.size());
  return plan_with(datasets, objects, attributes, digests, alignment_bytes).frame;
}

}  // namespace reshard::hdf5
