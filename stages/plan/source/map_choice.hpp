#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/mapping/map_choice.hpp"

namespace reshard {

/// Reads Megatron-Core's map and the family's: the one named, or with "auto" the one whose
/// model_type is the config's, and whose [match] config holds before those without such a
/// condition, or else whose [match] args holds. `need_family`: a Hugging Face side
/// cannot do without. No family, or several, is an Error of kind usage that lists the choices.
/// `origin`: where the source states that its config.json is, for that message.
MapChoice choose_maps(std::string const& map, std::vector<std::filesystem::path> const& folders,
                      Json const& config, Json const& args, bool need_family,
                      std::string const& origin = {});

/// Whether [match] args of a map holds for the args; false without either.
bool matches_args(MapFile const& map, Json const& args);

/// The map that a key of the job names: "[target] map". An Error of kind usage when there is none.
MapFile named_map(std::string_view key, std::string const& map,
                  std::vector<std::filesystem::path> const& folders);

/// An Error of kind usage where a map of names alone says whose names it has ([match] model_type),
/// and the family is not among them.
void check_names_of(std::string_view key, MapFile const& names, MapFile const& family);

/// Every map of a family that can be read, by file name: those that list a model_type.
std::vector<MapFile> family_maps(std::vector<std::filesystem::path> const& folders);

/// The parallel axes that Megatron-Core's map knows: those that a layout may name.
std::vector<std::string> known_mesh_axes(std::vector<std::filesystem::path> const& folders);

}  // namespace reshard
