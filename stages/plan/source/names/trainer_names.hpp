#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// The text that a pattern's one '*' stands for in `name`, "" for a pattern without one; nothing
/// where the pattern does not fit.
std::optional<std::string_view> star_of(std::string_view pattern, std::string_view name);

/// A trainer's name of a part of a model, and Hugging Face's, by one [kept.NAME] of a map. Of
/// several patterns that fit the longest is meant.
struct PartName {
  MapKeptName const* by = nullptr;
  std::string_view star;
};
std::optional<PartName> part_of_trainer(MapKept const& kept, std::string_view name);
std::optional<PartName> part_of_family(MapKept const& kept, std::string_view name);
/// Names of Hugging Face, the usual one first. Pre: the part is not of the trainer's own.
std::vector<std::string> family_names(PartName const& part);
std::string trainer_name(PartName const& part);

/// The trainer that most of these names are of; of several the one whose patterns say most of
/// them. nullptr: none of them fits any.
MapKept const* trainer_of(std::vector<MapKept> const& trainers,
                          std::vector<std::string> const& names);

/// Whether a trainer has tensors of its own, which entries of the maps describe.
bool has_own(MapKept const& kept);

}  // namespace reshard
