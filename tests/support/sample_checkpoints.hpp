#pragma once

#include <cstddef>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "core/formats/format.hpp"

namespace reshard::test {

/// A tensor and its row-major bytes. No two elements near each other are alike.
struct SampleTensor {
  std::string name;
  DType dtype = DType::u8;
  std::vector<Index> shape;
  std::vector<std::byte> bytes;
  friend bool operator==(SampleTensor const&, SampleTensor const&) = default;
};

/// Bytes that follow from `seed` and their place.
std::vector<std::byte> sample_bytes(std::uint64_t seed, std::uint64_t count);

/// What every format holds. The first is cut in two where a format cuts.
std::vector<SampleTensor> usual_tensors(std::string const& prefix);

/// A small checkpoint on disk, and what its maker put into it.
struct SampleCheckpoint {
  std::filesystem::path path;  ///< the folder
  /// In any order. Names in shares are "mp_rank_00_001/decoder.…".
  std::vector<SampleTensor> tensors;
  std::vector<std::filesystem::path> files;  ///< those with tensors, sorted
  std::filesystem::path written_last;        ///< a file of a save; without it the save is cut short
};

/// How one format's samples come to be. What a format can lack is said here.
struct SampleMaker {
  std::string name;  ///< of the tests
  Format const* format = nullptr;
  /// Makes one in a folder that does not exist yet.
  SampleCheckpoint (*make)(std::filesystem::path const& folder) = nullptr;
  /// The same with state of a training run in it; nullptr where the format holds none.
  SampleCheckpoint (*make_with_state)(std::filesystem::path const& folder) = nullptr;
  bool has_optimizer = false;  ///< the state is an optimizer's
  bool has_rng = false;        ///< and of random generators
  bool config_inside = false;  ///< the model's config stands in the files with tensors
  bool has_tracker = false;    ///< saves may lie in a root with a tracker
};

inline void PrintTo(SampleMaker const& maker, std::ostream* out) { *out << maker.name; }

/// One for each of all_formats(), for both kinds of HDF5 containers, and for boxed safetensors.
std::vector<SampleMaker> sample_makers();

}  // namespace reshard::test
