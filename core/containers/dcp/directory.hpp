#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/dcp/metadata/metadata.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard::dcp {

inline constexpr std::string_view metadata_name = ".metadata";
inline constexpr std::string_view backend_name = "metadata.json";
inline constexpr std::string_view common_name = "common.pt";
inline constexpr std::string_view common_key = "common_state/shard_0_1";

/// The program whose names and side files a DCP folder has.
enum class Flavour {
  plain,         ///< any state dict
  torch_dist,    ///< Megatron-Core: metadata.json, common.pt or a common_state item
  fsdp_dtensor,  ///< Megatron-FSDP: keys model.module.…, no side files
  torch_dcp,     ///< Megatron-LM with torch's FSDP2: keys model.…, an object args
};

/// A checkpoint folder, by its file names and the texts of the tracker and metadata.json only.
struct Directory {
  std::filesystem::path root;    ///< as the user named it
  std::filesystem::path folder;  ///< the folder of .metadata: root itself, or root/iter_0000010,
                                 ///< root/release, root/step-10, …
  std::filesystem::path states;  ///< of a save of accelerate: the folder of its optimizer state
  std::optional<std::int64_t> iteration;  ///< from the folder's name or the tracker
  bool release = false;
  bool has_backend_file = false;  ///< metadata.json names torch_dist
  bool has_common_file = false;   ///< common.pt
  /// Further files and folders next to the items (tokenizer, modelopt_state, run_config.yaml, …),
  /// sorted, without lists of checksums, which hold for this folder only.
  std::vector<std::string> side_files;
};

/// Whether a folder is a save of accelerate of one model (saves.hpp), complete or not.
bool is_accelerate_save(std::filesystem::path const& path);

/// Whether the path, the folder its tracker names or, without a tracker, one of its step-N, iter_N,
/// global_stepN or release folders is a distributed checkpoint, complete or not; or it is a save of
/// accelerate.
bool looks_like_dcp(std::filesystem::path const& path);

/// Takes the folder itself, the weights of a save of accelerate, the folder that the tracker names,
/// or the only complete one of the folders named above. Errors of kind source: several such
/// folders, no `.metadata` (an aborted save: what is there is named), `__N.metadata` files of a
/// save without collectives, a zarr backend, a tracker that names a folder that is not there,
/// metadata.json that is none.
Directory open_directory(std::filesystem::path const& path);

/// The flavour, by metadata.json and by the keys.
Flavour flavour_of(Directory const& directory, Metadata const& metadata);

/// Megatron's common state: the dict with args, iteration, … `root` is the dict's node.
struct CommonState {
  std::filesystem::path file;
  TorchFile torch;
  pickle::NodeId root = pickle::no_node;
};
/// Reads common.pt, else the common_state item; nullopt if there is neither. Damage is an Error of
/// kind source.
std::optional<CommonState> read_common(Directory const& directory, Metadata const& metadata);

/// Reads the common state of a file common.pt.
CommonState read_common_file(std::filesystem::path const& file);

/// The bytes of a complete torch.save file for a small document. `payload(i)` returns the row-major
/// bytes of tensor i; it is not called for tensors without elements.
std::string torch_file_bytes(pickle::Document& document, std::string_view archive,
                             std::function<std::string(std::size_t)> const& payload = {});

/// metadata.json of a torch_dist checkpoint: the four keys that every release accepts.
std::string backend_json();

}  // namespace reshard::dcp
