#pragma once

#include <filesystem>
#include <string>

#include "core/base/text/json.hpp"

namespace reshard {

/// The answer of `inspect` for the folder of a training run.
struct RunTable {
  Json json = Json::array();  ///< an object for each save, the newest first
  std::string text;           ///< a line for each; "" where `path` is no such folder
  std::size_t saves = 0;
};

/// Looks at each save in `path`: whether it is complete, its size and age, what trackers say.
/// `taken`: the folder that a conversion of `path` reads; "" for none. `known`: the report of that
/// folder, or null; then a single save, which it describes, makes no table. Reads headers of the
/// newest saves, of the others names alone.
RunTable run_table(std::filesystem::path const& path, std::filesystem::path const& taken,
                   Json const* known);

}  // namespace reshard
