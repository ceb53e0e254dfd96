#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.hpp"
#include "core/mapping/map_file.hpp"
#include "core/mapping/model.hpp"

namespace reshard {

/// A value in config.json that is no object, and the way to it.
struct ConfigMember {
  std::vector<std::string> path;  ///< {"text_config", "rope_parameters", "factor"}
  std::string key;                ///< "rope_parameters.factor": without the member that the map's facts are in
  Json value;
};

/// The members of one model's config.json, and which of them say nothing of what the model computes that a [neutral] table does not know.
class ConfigMembers {
 public:
  /// What it refers to outlives it. A config that the family cannot describe is an Error of kind usage.
  ConfigMembers(MapFile const& family, MapFile const& core, Json const& config);

  /// Those that may change what the model computes: neither null nor neutral. In the order of the file.
  std::vector<ConfigMember> const& members() const { return members_; }

  /// Whether a member with this value changes nothing, by the first entry of [neutral] that fits its key; without one, whether it is null, false or
  /// empty. The family's entries come before those of mcore.toml.
  bool neutral(std::string_view key, Json const& value) const;

  /// Whether Megatron's args, or the sizes of tensors, depend on the member: some other value gives others.
  bool held(ConfigMember const& member) const;

  /// Whether they are others when the member at this path has another value. A null value takes it away.
  bool differs_with(std::vector<std::string> const& path, Json const& value) const;

 private:
  void add_members(Json const& object, std::vector<std::string> path, std::string const& key, std::string_view without);
  std::string state(Json const& config) const;

  MapFile const& family_;
  MapFile const& core_;
  Json const& config_;
  Model model_;
  std::string state_;
  std::vector<ConfigMember> members_;
};

/// What Megatron's args cannot say of a config.json, as a sentence; "" for nothing. `kept`: the file travels with the checkpoint.
std::string unheld_warning(MapFile const& family, MapFile const& core, Json const& config, bool kept);

/// A value as messages show it.
std::string shown_value(Json const& value);

}  // namespace reshard
