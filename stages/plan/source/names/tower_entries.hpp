#pragma once

#include <string>
#include <vector>

#include "core/mapping/maps/map_choice.hpp"

namespace reshard {

/// Entries of a family's map for parts that it also lists under `keep`: a vision tower whose axes
/// it knows. They hold where `tower` of its [let] is 1. A map whose entries are for some towers
/// alone says which by `tower_when`, a condition over config.json.
class TowerEntries {
 public:
  TowerEntries(MapChoice const& maps, Json const& config);

  bool empty() const { return entries_.empty(); }
  /// Whether an entry makes this name of Hugging Face.
  bool describes(std::string const& name) const;

  /// Switches the entries on, in the family's map and in Megatron's.
  static void switch_on(MapChoice& maps);
  /// Adds them to Megatron's map under the names that a trainer without tensors of its own has, or,
  /// for nullptr, under those of Hugging Face. A part for which it has no name is an Error of kind
  /// usage.
  void add(MapFile& core, MapFile const& family, MapKept const* trainer) const;

 private:
  struct Entry {
    MapName const* name;
    std::vector<std::string> globs;  ///< with '*' for fields, one for each way to spell macros
  };
  std::vector<Entry> entries_;
};

/// The condition under which an entry of Megatron's map holds: names of this trainer are wanted.
Expression names_of(MapKept const* trainer, std::string const& place);

}  // namespace reshard
