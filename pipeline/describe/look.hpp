#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.hpp"
#include "core/formats/format.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/verify/checkpoint_query.hpp"

namespace reshard {

/// Format and layout of a checkpoint with the reason for each conclusion; reads headers only.
/// Damage is reported, not thrown, where the rest can still be reported. `misfit`: what
/// config_misfit() says.
Inspection inspect(std::filesystem::path const& path, megatron::UserSizes const& user,
                   std::string const& misfit);
/// Why the weights of a Hugging Face folder are not those that its config.json describes; "" where
/// they are, or nothing is known of it. Collective.
std::string config_misfit(std::filesystem::path const& path, MapLibrary const& library,
                          Comm const& comm);

/// What `ls` shows: stored tensors, or the model's logical tensors.
enum class Listing { stored, logical };

struct TensorList {
  Json json;
  std::string text;
  std::vector<std::string> notes;  ///< what else there is to know, for stderr
};

/// Map, config and prefix count for logical tensors.
struct ListQuery : CheckpointQuery {
  Listing listing = Listing::stored;
};

/// Every tensor with dtype, shape and place; reads headers only.
TensorList list_tensors(ListQuery const& query, Comm const& comm);

}  // namespace reshard
