#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/mapping/sides/side_entry.hpp"
#include "core/mapping/sides/side_scope.hpp"

namespace reshard {

/// The text of a stored name under given numbers: fields and macros.
class NameMaker {
 public:
  /// All outlive the maker. It may remember conditions: make a new one when it is decided again
  /// which tensors the model has.
  NameMaker(Model const& model, MapFile const& map, SideScope const& scope,
            std::vector<CompiledMacro> const& macros)
      : model_(model), map_(map), scope_(scope), macros_(macros) {}

  /// Nothing when a place number lies outside the chunk. Notes in the variables which of them were
  /// used; `where` is the map's place.
  std::optional<std::string> make(NameTemplate const& name,
                                  std::vector<SideVariable> const& variables,
                                  PipelineChunk const* chunk, std::string const& where,
                                  int depth = 0) const;

  /// The layers or depths of a chunk that a name's place counts.
  static std::vector<Run> const& place_runs(std::string_view place, PipelineChunk const& chunk,
                                            std::string const& where);

 private:
  bool append_field(std::string& result, NameTemplate::Segment const& segment,
                    std::vector<SideVariable> const& variables, PipelineChunk const* chunk,
                    std::string const& where) const;
  Json field(NameTemplate::Segment const& segment,
             std::vector<SideVariable> const& variables) const;
  std::optional<std::string> macro(std::size_t macro, std::vector<SideVariable> const& variables,
                                   PipelineChunk const* chunk, std::string const& where,
                                   int depth) const;
  bool holds(std::size_t macro, std::size_t choice,
             std::vector<SideVariable> const& variables) const;
  bool member(std::string const& set, std::vector<SideVariable> const& variables) const;

  Model const& model_;
  MapFile const& map_;
  SideScope const& scope_;
  std::vector<CompiledMacro> const& macros_;
  mutable std::map<std::pair<std::size_t, std::size_t>, bool>
      settled_;  ///< conditions (macro, choice) that ask for no index
};

}  // namespace reshard
