#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/json.hpp"

namespace reshard {

/// What a Hugging Face folder with a config.json must hold by the map of its family.
struct ExpectedNames {
  std::string family;                ///< the map
  std::size_t count = 0;             ///< tensors that the map requires
  std::vector<std::string> lacking;  ///< those that are not stored, in the order of the map
  /// Whether the folder can hardly be this model.
  bool most_lack() const { return 2 * lacking.size() > count; }
};

/// Compares `stored`, names of tensors, with those that a config.json requires. A weight may be
/// stored in parts, whose names begin as its own; layers for multi-token prediction may lack.
/// Nothing where no map describes the config.
std::optional<ExpectedNames> expected_names(Json const& config,
                                            std::set<std::string, std::less<>> const& stored,
                                            std::vector<std::filesystem::path> const& map_folders);

/// "27 of the 39 tensors that …/config.json asks for (map 'llama') are missing under their names
/// (…)".
std::string lacking_sentence(ExpectedNames const& expected,
                             std::set<std::string, std::less<>> const& stored,
                             std::string const& config_name);

}  // namespace reshard
