#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/nightly/nightly_choice.hpp"

namespace reshard {

/// The saves in a training directory (saves_below). Times are filled in where names do not give an
/// order.
std::vector<ListedFolder> checkpoints_in(std::filesystem::path const& folder);

/// Whether a folder has files of a checkpoint of some format, whole or not. Looks at names only.
bool holds_checkpoint(std::filesystem::path const& folder);

/// The tracker of a training directory.
struct Tracked {
  std::optional<std::int64_t> step;  ///< nothing without a tracker
  bool empty = false;  ///< there is one without a word in it: a program is about to write it
};

/// Waits a second for a word. One that is no step is an Error of kind source.
Tracked tracked_step(std::filesystem::path const& folder);

}  // namespace reshard
