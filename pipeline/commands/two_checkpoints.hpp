#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "pipeline/verify/compare/compare.hpp"

namespace reshard {

/// How A and B are read: the options that `verify`, `diff` and `view` of two checkpoints have in
/// common.
struct TwoCheckpoints {
  std::string map = "auto";
  std::string map_a;     ///< "": as map
  std::string map_b;     ///< the same
  std::string config_a;  ///< config.json or its folder; "" for none
  std::string config_b;
  std::string prefix_a;  ///< "" for none
  std::string prefix_b;
  std::string adapter;  ///< "" for none

  /// All but --map.
  void add_to(CLI::App& command);
  /// A sentence; "" for none.
  std::string mistake() const;
  /// Whether an option says how B is read.
  bool says_b() const { return !(config_b.empty() && map_b.empty() && prefix_b.empty()); }
  /// Whether any option was given that add_to() has added.
  bool is_given() const {
    return says_b() || !(config_a.empty() && map_a.empty() && prefix_a.empty() && adapter.empty());
  }
  CompareRequest request(std::vector<std::string> const& paths, Comparison comparison,
                         MapLibrary const& library) const;
};

}  // namespace reshard
