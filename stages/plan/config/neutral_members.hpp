#pragma once

#include <string_view>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_file.hpp"
#include "core/mapping/model.hpp"

namespace reshard {

/// The [neutral] tables of a family and of mcore.toml for one model. Tables and model outlive it.
class NeutralMembers {
 public:
  NeutralMembers(MapFile const& family, MapFile const& core, Model const& model)
      : family_(family), core_(core), model_(model) {}

  /// Whether a member with this value changes nothing, by the first entry that fits its key;
  /// without one, whether it is null, or says as little as false and nothing by default. The
  /// family's entries come before those of mcore.toml.
  bool neutral(std::string_view key, Json const& value) const;

  /// Whether the member changes nothing with any value.
  bool always(std::string_view key) const;

  /// Whether it describes a part that is carried as it is.
  bool kept(std::string_view key) const;

 private:
  NamedExpression const* entry(std::string_view key) const;
  bool says_something_by_default(std::string_view key) const;

  MapFile const& family_;
  MapFile const& core_;
  Model const& model_;
};

}  // namespace reshard
