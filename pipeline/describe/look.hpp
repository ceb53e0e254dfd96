#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/formats/format.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/verify/checkpoint_query.hpp"

namespace reshard {

/// Format and layout of a checkpoint with the reason for each conclusion; reads headers only.
/// Damage is reported, not thrown, where the rest can still be reported. Of the folder of a run it
/// lists the saves; where none of them can be taken, the JSON has a member "refused", and the text
/// is the list alone.
Inspection inspect(std::filesystem::path const& path, megatron::UserSizes const& user);

/// The same, and how its names are read: with the query's map, config and prefix, where there is
/// one of these, or with the config.json that a plain DCP checkpoint has. Where they were given and
/// do not fit, that is a mismatch.
Inspection inspect(CheckpointQuery const& query, megatron::UserSizes const& user);

/// The listing of `ls`: stored tensors, or the model's logical tensors.
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
