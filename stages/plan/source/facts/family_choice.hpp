#pragma once

#include <optional>
#include <string>

#include "core/formats/targets/target.hpp"
#include "core/mapping/maps/map_choice.hpp"

namespace reshard {

/// The family of a checkpoint that only its args describe, and what is to be said of the choice.
struct FamilyChoice {
  std::optional<MapFile> family;  ///< nothing: the one that [match] args chose
  std::string warning;
};

/// Several families can have one structure. Facts choose among them: the config.json of the model
/// that training began from, where `origin` names a folder of this machine that has one; else what
/// args say and only one family's config.json can hold. Where families are left and `origin` says
/// that there is a model to look at, the choice is a warning. `args`: those that say something.
/// Pre: `maps.family` was chosen by args.
FamilyChoice settled_family(MapChoice const& maps, PlanRequest const& request, Json const& args,
                            std::string const& origin);

}  // namespace reshard
