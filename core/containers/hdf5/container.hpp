#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/files/file_segment.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard::hdf5 {

/// One tensor of a container: /tensors/<name>, '/' in the name as %2F, '%' as %25.
struct DatasetSpec {
  std::string name;
  DType dtype = DType::u8;
  std::vector<Index> shape;
  std::vector<std::string> axes = {};  ///< dimension labels; none or one for each dimension
  std::string domain = {};  ///< the indices of its axes that it contains ("layer 3:61"); "" for all
};

/// Bytes that are copied unchanged: /objects/<name>, one dimension of unsigned bytes.
struct ObjectSpec {
  std::string name;
  std::uint64_t size_bytes = 0;
};

/// Root attributes, fixed-length texts, besides those that every container has. Ascending names.
using RootAttributes = std::vector<std::pair<std::string, std::string>>;

/// The byte layout of a container before any data moves: the same on every rank and in every run.
struct ContainerPlan {
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> offset_bytes;         ///< of each dataset's first element
  std::vector<std::uint64_t> object_offset_bytes;  ///< of each object
  std::vector<FileSegment>
      frame;  ///< the bytes that libhdf5 wrote; bytes of neither frame nor data are zero
};

/// Lets libhdf5 make the skeleton (in memory) and takes the offsets from it. `alignment_bytes`:
/// datasets of 64 KiB and more begin at its multiples. The digests are zero and `complete` is 0.
/// Duplicate names are an Error of kind usage.
ContainerPlan plan_container(std::span<DatasetSpec const> datasets,
                             std::span<ObjectSpec const> objects, RootAttributes const& attributes,
                             std::uint64_t alignment_bytes = 4096);

/// The frame of the same container once its data are written: with the digests (one for each
/// dataset, then one for each object) and `complete` = 1. Offsets are those of plan_container();
/// bytes of neither this frame nor data are zero.
std::vector<FileSegment> finished_frame(std::span<DatasetSpec const> datasets,
                                        std::span<ObjectSpec const> objects,
                                        RootAttributes const& attributes,
                                        std::span<std::uint64_t const> digests,
                                        std::uint64_t alignment_bytes = 4096);

/// A dataset that was found in a file.
struct FoundDataset {
  std::string
      name;  ///< of a container: the tensor's; of another file: its path without the leading '/'
  DType dtype = DType::u8;
  std::vector<Index> shape;
  std::vector<std::string> axes;  ///< dimension labels where all dimensions have one, else none
  std::string domain;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::optional<std::uint64_t> digest;
};

/// The content of a file. `container`: its root attribute `format` marks it as written by us; else
/// it is another program's file with one dataset per tensor.
struct Found {
  bool container = false;
  RootAttributes attributes;
  std::vector<FoundDataset> tensors;  ///< in the order of their offsets
  std::vector<FoundDataset> objects;
};

/// Reads the content of a file in a child process with limits: even for a hostile file this returns
/// a result or throws an Error of kind source. Refused: links (soft, external), virtual datasets,
/// external storage, filters and chunks, types that are no DType or, in a container, not that of
/// its `dtype`, datasets without storage or beyond the end of the file, containers whose `complete`
/// is not 1, repeated or unsafe names.
Found read_file(std::filesystem::path const& path);

/// Found <-> bytes, for the exchange between ranks.
std::string pack(Found const& found);
Found unpack(std::string const& packed);

/// Whether a file begins as an HDF5 file does.
bool looks_like_hdf5(std::filesystem::path const& path);

}  // namespace reshard::hdf5
