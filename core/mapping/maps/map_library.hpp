#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_choice.hpp"

namespace reshard {

/// The map files that a program knows: folders with NAME.toml. The first that has any is where
/// those lie that can be chosen; what they inherit from, and tables of settings, may be in others.
/// Files are read when they are asked for.
class MapLibrary {
 public:
  MapLibrary() = default;
  explicit MapLibrary(std::vector<std::filesystem::path> folders) : folders_(std::move(folders)) {}

  std::vector<std::filesystem::path> const& folders() const { return folders_; }

  /// Megatron-Core's map and the family's: the one named, or with "auto" the one whose model_type
  /// is the config's, and whose [match] config holds before those without such a condition, or
  /// else whose [match] args holds. `need_family`: a Hugging Face side cannot do without. No
  /// family, or several, is an Error of kind usage that lists the choices. `origin`: where the
  /// source states that its config.json is, for that message.
  MapChoice choose(std::string const& map, Json const& config, Json const& args, bool need_family,
                   std::string const& origin = {}) const;

  /// The map that a key of the job names: "[target] map". An Error of kind usage when there is
  /// none.
  MapFile named(std::string_view key, std::string const& map) const;

  /// Every map of a family that can be read, by file name: those that list a model_type.
  std::vector<MapFile> families() const;

  /// settings/NAME.toml of the first folder that has it. Errors of kind usage: none has, or one
  /// with a mistake.
  MapFile settings(std::string const& name) const;

  /// The parallel axes that Megatron-Core's map knows: those that a layout may name.
  std::vector<std::string> mesh_axes() const;

 private:
  std::vector<std::filesystem::path> folders_;
};

/// Whether [match] args of a map holds for the args; false without either.
bool matches_args(MapFile const& map, Json const& args);

/// An Error of kind usage where a map of names alone says whose names it has ([match] model_type),
/// and the family is not among them.
void check_names_of(std::string_view key, MapFile const& names, MapFile const& family);

}  // namespace reshard
