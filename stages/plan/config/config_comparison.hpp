#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/formats/format.hpp"
#include "core/mapping/maps/map_library.hpp"

namespace reshard {

/// The descriptions of a checkpoint's computation: a config.json, Megatron's args, both or neither
/// (null).
struct ModelDescription {
  Json config;
  Json args;
  Json adapter = {};  ///< adapter_config.json of peft
};

/// Of a checkpoint: what lies beside its weights or is copied with it; `config` names another
/// config.json.
ModelDescription describe_model(Checkpoint const& checkpoint, std::filesystem::path const& config,
                                MapLibrary const& library);

/// A member of config.json, or an argument ("args.rotary_base"), that two models have otherwise. ""
/// stands for: not there.
struct ConfigDifference {
  std::string key;
  std::string a;
  std::string b;
};

/// Differences between two descriptions of a model's computation, or why they were not compared.
struct ConfigComparison {
  std::vector<ConfigDifference> differences;
  std::string not_compared;
};

/// Compares what changes the function of a model, by the map of its family: members that args hold
/// by what they make of args, others by their value.
ConfigComparison compare_configs(ModelDescription const& a, ModelDescription const& b,
                                 MapLibrary const& library);
/// The same by a map that is known.
ConfigComparison compare_configs_by(MapChoice const& maps, ModelDescription const& a,
                                    ModelDescription const& b);

}  // namespace reshard
