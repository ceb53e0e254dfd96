#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/containers/tracker.hpp"
#include "core/formats/megatron/headers/shard_name.hpp"

namespace reshard::megatron {

using reshard::release_name;
using reshard::tracker_name;
using reshard::tracker_text;
inline constexpr std::string_view model_file_name = "model_optim_rng.pt";
/// The folder inside the zip of model_optim_rng.pt.
inline constexpr std::string_view model_archive_name = "model_optim_rng";

/// One mp_rank_* directory.
struct Shard {
  std::string name;  ///< of the directory
  std::filesystem::path path;
  ShardName numbers;
  std::vector<std::string> files;  ///< regular files inside, sorted
  std::string model_file;          ///< the file with weights: "model_optim_rng.pt" (old:
                                   ///< "model_rng.pt"); "" if it is missing

  std::filesystem::path model_path() const { return path / model_file; }
};

/// A legacy checkpoint found on disk: names only, no file was opened but the tracker.
struct Directory {
  std::filesystem::path root;           ///< the folder of the tracker and the iterations; equals
                                        ///< iteration_dir if it contains mp_rank_* directly
  std::filesystem::path iteration_dir;  ///< the folder of the mp_rank_* directories
  bool release = false;                 ///< "release": weights of a converter, iteration 0
  std::int64_t iteration = 0;
  std::vector<Shard> shards;                ///< ordered by their numbers
  std::vector<std::string> optimizer_only;  ///< mp_rank_*_DDD with a data-parallel number and only
                                            ///< an optimizer file: not shards
  std::vector<std::string> foreign;         ///< other entries of iteration_dir
  std::vector<std::string> notes;           ///< sentences about assumptions
};

/// Finds the checkpoint in `path`: a root with a tracker (or, with a note, exactly one
/// iter_*/release in it), an iter_*/release directory, or a directory that contains mp_rank_*
/// itself. Errors of kind source name the actual content: a torch_dist or DeepSpeed checkpoint,
/// only optimizer directories, a tracker that names a missing folder.
Directory open_directory(std::filesystem::path const& path);

/// Whether the places that open_directory() searches have mp_rank_* directories. Never throws.
bool looks_like_megatron(std::filesystem::path const& path);

/// "iter_0000100", with more digits if the number has more than seven.
std::string iteration_directory_name(std::int64_t iteration);

}  // namespace reshard::megatron
