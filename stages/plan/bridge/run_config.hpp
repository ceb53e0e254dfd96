#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_library.hpp"

namespace reshard {

/// The name of Megatron-Bridge's settings in the folder of an iteration.
inline constexpr char const* run_config_name = "run_config.yaml";

/// Facts from which the settings of a target are made.
struct BridgeTarget {
  Json args;           ///< every argument of Megatron that the target states
  std::string family;  ///< name of the map; "": a run of Megatron-LM, whose args say it all
  std::vector<std::string> own_args = {};  ///< that Megatron-Core has no layers for
  Json config = {};                        ///< config.json of the model; null for none
  std::filesystem::path folder;            ///< absolute, where the target will be
  std::optional<std::filesystem::path> hf_folder =
      {};                     ///< with config.json and a tokenizer, absolute
  bool layers_apart = false;  ///< torch_dist keys have layer numbers
  bool has_optimizer = false;
  bool has_random_state = false;
  bool has_parts = false;  ///< that see or hear, beside the language model
};

/// The run_config.yaml from which Megatron-Bridge builds the model of a target, by
/// settings/megatron_bridge_target.toml of a map folder. An Error of kind usage for a family that
/// it does not describe, and where no map folder has that file.
std::string run_config_text(BridgeTarget const& target, MapLibrary const& library);

/// The run_config.yaml of a source with the members of its section `model` in which the target
/// differs: the parallel sizes that `args` state, whether layers have keys of their own, and
/// whether rows follow the vocabulary; with `dtypes` also what it computes in, as `args` state. The
/// rest of the text stays as it is, except in flow style or
/// with quoted keys, where the whole document is written in block style.
std::string revised_run_config(std::string const& text, Json const& args, bool layers_apart,
                               bool dtypes = false);

}  // namespace reshard
