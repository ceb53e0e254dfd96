#pragma once

#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// Args that differ and count: name, what the first says, what the second says.
struct ArgDifference {
  std::string name;
  Json first;
  Json second;
};

/// Changes of a config.json that travelled with a Megatron checkpoint, with reasons. `untold`: args
/// that no member of config.json can say, with their values by the changed config.
struct ConfigRevision {
  std::vector<huggingface::ConfigPatch> changes;
  std::vector<ArgDifference> untold;
  std::vector<std::string> warnings;
};

/// Compares the args that the family makes of `config` with those of the checkpoint. Where these
/// say something else by now, members of the config that [config] makes of args take its new
/// values. What no member says is a warning. Without [config] it is an Error of kind source.
/// `folder` is where the config travels.
ConfigRevision revised_config(MapFile const& family, MapFile const& core, Json const& config,
                              Json const& args, std::string const& folder);

/// Whether the family's [args] make this one.
bool makes_arg(MapFile const& family, std::string const& arg);

/// Megatron's args of a config.json, by the family's [args].
Json args_from_config(MapFile const& family, MapFile const& core, Json const& config);

/// Of the args that the family makes, those in which two checkpoints differ. Null, false and what
/// [neutral] calls so under "args.NAME" are alike.
std::vector<ArgDifference> differing_args(MapFile const& family, MapFile const& core,
                                          Json const& first, Json const& second);

/// The same of those that change what any model computes: `function_args` of mcore.toml.
std::vector<ArgDifference> differing_function_args(MapFile const& core, Json const& first,
                                                   Json const& second);

/// Args of a checkpoint that change what it computes, and that a config.json which was made of them
/// does not say.
std::vector<ArgDifference> untold_args(MapFile const& family, MapFile const& core,
                                       Json const& config, Json const& args);

/// The same as a sentence; "" for none.
std::string untold_warning(MapFile const& family, MapFile const& core, Json const& config,
                           Json const& args);

/// Members of a config.json made of args for which args say nothing, so that a default was taken:
/// "rope_theta = 10000".
std::vector<std::string> guessed_members(MapFile const& family, MapFile const& core,
                                         Json const& args, Json const& made);

}  // namespace reshard
