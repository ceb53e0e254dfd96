#pragma once

#include <span>
#include <string>
#include <vector>

#include "stages/plan/draft/name_groups.hpp"

namespace reshard {

/// Stored tensors that a map expects of a model. `key` is the name as the map writes it, prefixes
/// joined ("{l}mlp.up_proj.weight"), `text` the same as NameGroup has it.
struct ExpectedGroup {
  std::string key;
  std::string is;  ///< layout expression
  std::string text;
  std::vector<Index> shape;
};

/// A macro of [names], or what it becomes: "l", "{model}layers.{layer}.".
struct NameMacro {
  std::string name;
  std::string text;
  friend bool operator==(NameMacro const&, NameMacro const&) = default;
};

/// A stored name that the base does not have: the key and the layout expression of its entry, and
/// which keys of the base it replaces.
struct NameChange {
  std::string key;
  std::string is;
  std::vector<std::string> replaced;
  std::string reason;  ///< for a comment: "gate_proj, up_proj in this order?"
};

/// How the names of a model differ from those that a map expects.
struct NameMatch {
  std::vector<NameMacro> macros;      ///< other texts for macros of the base
  std::vector<NameChange> changes;    ///< other names
  std::vector<std::string> absent;    ///< keys of the base that nothing fits
  std::vector<std::size_t> left;      ///< groups that nothing fits, as places in `found`
  std::vector<std::string> reshaped;  ///< groups whose shape is another than expected
  std::size_t equal = 0;              ///< groups whose names fit, with other macros or without
};

/// Finds it, in the order: prefixes that macros can say; several weights in one tensor, by rows;
/// other names, by shape and words. Shapes that are not known fit. All of it is a proposal: what
/// names and shapes cannot decide is in `reason`.
NameMatch match_names(std::span<ExpectedGroup const> expected, std::span<NameMacro const> macros,
                      std::span<NameGroup const> found);

}  // namespace reshard
