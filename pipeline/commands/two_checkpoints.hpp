#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "pipeline/verify/compare/compare.hpp"

namespace reshard {

/// How one of two checkpoints is read.
struct SideChoice {
  std::string map;     ///< "": as of both
  std::string config;  ///< config.json or its folder; "" for none
  std::string prefix;  ///< "" for none
  std::string source;  ///< a job file in place of all others; "" for none

  /// Whether one in whose place a job file stands was given.
  bool says() const { return !(map.empty() && config.empty() && prefix.empty()); }
  bool is_given() const { return says() || !source.empty(); }
};

/// How A and B are read: the options that `verify`, `diff` and `view` of two checkpoints have in
/// common.
struct TwoCheckpoints {
  std::string map = "auto";
  SideChoice a;
  SideChoice b;
  std::string adapter;  ///< "" for none

  /// All but --map.
  void add_to(CLI::App& command);
  /// A sentence; "" for none.
  std::string mistake() const;
  /// Whether any option was given that add_to() has added.
  bool is_given() const { return a.is_given() || b.is_given() || !adapter.empty(); }
  /// Reads the job files. Collective.
  CompareRequest request(std::vector<std::string> const& paths, Comparison comparison,
                         MapLibrary const& library, Comm const& comm) const;
};

}  // namespace reshard
