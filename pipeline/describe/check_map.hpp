#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_library.hpp"

namespace reshard {

/// The answer of `check-map`: the document, the same as text, and the first mistake; "" when the
/// map is proved.
struct MapReport {
  Json json;
  std::string text;
  std::string error;
};

/// Proves a map (a name in the map folder, or a path) on the model of a config.json or its folder,
/// or of a JSON file with Megatron's args; with neither ("") it checks what needs no model. A map
/// that cannot be read and sizes that do not divide are Errors of kind usage.
MapReport check_map_report(std::string const& map, std::string const& config_path,
                           std::string const& args_path, MapLibrary const& library);

/// A JSON object from a file that the command line names, or from the config.json of a folder.
/// Every fault of it is an Error of kind usage.
Json read_facts(std::filesystem::path path, std::uint64_t largest_bytes);

}  // namespace reshard
