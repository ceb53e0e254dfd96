#pragma once

#include <string>
#include <vector>

#include "core/mapping/maps/map_library.hpp"
#include "pipeline/describe/check_map.hpp"

namespace reshard {

/// The answer of `check-map --draft`: a proposal for the map of a model. `paths`: a Hugging Face
/// folder, whose headers are read; or a config.json and an index or a folder with the headers,
/// which give the stored names. `base`: the map to inherit from, "" for the nearest. Paths without
/// enough facts are Errors of kind usage.
MapReport draft_map_report(std::string const& base, std::vector<std::string> const& paths,
                           MapLibrary const& library);

}  // namespace reshard
