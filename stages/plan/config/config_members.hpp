#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_file.hpp"
#include "core/mapping/model.hpp"
#include "stages/plan/config/neutral_members.hpp"

namespace reshard {

/// A value in config.json that is no object, and the way to it.
struct ConfigMember {
  std::vector<std::string> path;  ///< {"text_config", "rope_parameters", "factor"}
  std::string key;  ///< "rope_parameters.factor": without the member that the map's facts are in
  Json value;
  bool kept = false;  ///< of a part that is carried as it is: a vision tower
};

/// The members of one model's config.json, with those that its family takes by default, and which
/// of them say nothing of what the model computes that a [neutral] table does not know.
class ConfigMembers {
 public:
  /// The maps outlive it. A config that the family cannot describe is an Error of kind usage.
  ConfigMembers(MapFile const& family, MapFile const& core, Json const& config);

  /// Those that may change what the language model computes: neither null nor neutral. In the order
  /// of the file.
  std::vector<ConfigMember> const& members() const { return members_; }
  /// Those that may change what the model computes with some value.
  std::vector<ConfigMember> const& all() const { return all_; }

  /// Whether a member of this kind changes nothing when it has this value.
  bool neutral(ConfigMember const& member, Json const& value) const;
  bool neutral(std::string_view key, Json const& value) const {
    return neutral_.neutral(key, value);
  }

  /// Whether Megatron's args, or the sizes of tensors, depend on the member: some other value gives
  /// others.
  bool held(ConfigMember const& member) const;

  /// Whether they are others when the member at this path has another value.
  bool differs_with(std::vector<std::string> const& path, Json const& value) const;

 private:
  void add_members(Json const& object, ConfigMember outer, std::string_view without);
  std::string state(Json const& config) const;

  MapFile const& family_;
  MapFile const& core_;
  Json config_;
  Model model_;
  NeutralMembers neutral_;
  std::string state_;
  std::vector<ConfigMember> all_;
  std::vector<ConfigMember> members_;
};

/// Args of which one is NaN or infinite are an Error of kind source.
void refuse_special_numbers(MapFile const& family, Json const& args);

/// Settings of a config.json that Megatron's args cannot hold, as a sentence; "" for none. `kept`:
/// the file is copied with the checkpoint.
std::string unheld_warning(MapFile const& family, MapFile const& core, Json const& config,
                           bool kept);

/// A value as messages show it.
std::string shown_value(Json const& value);

}  // namespace reshard
