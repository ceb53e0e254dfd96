#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.hpp"
#include "core/formats/format.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// Format and layout of a checkpoint with the reason for each conclusion; reads headers only.
/// Damage is reported, not thrown, where the rest can still be reported.
Inspection inspect(std::filesystem::path const& path, megatron::UserSizes const& user);

/// What `ls` shows: stored tensors, or the model's logical tensors.
enum class Listing { stored, logical };

struct TensorList {
  Json json;
  std::string text;
};

/// Every tensor with dtype, shape and place; reads headers only. `map` as in a job file, for
/// logical tensors.
TensorList list_tensors(std::filesystem::path const& path, Listing listing, std::string const& map,
                        std::vector<std::filesystem::path> const& map_folders, Comm const& comm);

}  // namespace reshard
