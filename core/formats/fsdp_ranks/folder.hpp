#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard::fsdp_ranks {

// Names of the files that trainers with FSDP save, one for each rank. Source: verl 0.9,
// verl/utils/checkpoint/fsdp_checkpoint_manager.py; SkyRL's
// skyrl_train/distributed/fsdp_strategy.py has the same names; lmms-engine's
// train/fsdp2/fsdp2_trainer.py puts the three kinds into folders of their own.

/// "model_world_size_8_rank_3.pt".
struct RankName {
  enum class Kind { model, optimizer, extra };
  Kind kind = Kind::model;
  Index world = 0;
  Index rank = 0;
  friend bool operator==(RankName const&, RankName const&) = default;
};
/// "optim_…" and "optimizer_…" are one kind, "extra_state_…" is another.
std::optional<RankName> parse_rank_name(std::string_view name);

/// {"FSDP_version": 2, "world_size": 8}, written by the first rank when all have saved.
inline constexpr std::string_view config_name = "fsdp_config.json";

/// The files of a save, by names only, except for fsdp_config.json.
struct Folder {
  std::filesystem::path path;  ///< of the save
  Index world = 0;
  std::vector<std::filesystem::path> models;      ///< by rank
  std::vector<std::filesystem::path> optimizers;  ///< by rank; empty if there are none
  std::string extra;                              ///< the first file of extra state, below `path`
  Index fsdp_version = 0;                         ///< 0: not stated
};

/// Whether a file of a rank is in `path`, or in a folder of lmms-engine below it. Throws the errors
/// of listing a folder.
bool looks_like_rank_files(std::filesystem::path const& path);

/// Errors of kind source: ranks whose files are missing, files of worlds of several sizes,
/// fsdp_config.json of another world, optimizer state without weights.
Folder open_folder(std::filesystem::path const& path);

}  // namespace reshard::fsdp_ranks
