#pragma once

#include <string>
#include <vector>

#include "core/mapping/sides/side_name_maker.hpp"
#include "core/mapping/sides/side_shares.hpp"

namespace reshard {

/// Which stored names a side has in one place.
class SideNames {
 public:
  /// All outlive the names.
  SideNames(Model const& model, MapFile const& map, SideOptions const& options,
            SideScope const& scope, SideShares const& shares,
            std::vector<CompiledMacro> const& macros, std::vector<SideEntry> const& entries)
      : model_(model),
        map_(map),
        options_(options),
        scope_(scope),
        shares_(shares),
        entries_(entries),
        maker_(model, map, scope, macros) {}

  std::vector<StoredName> names(PipelineChunk const* chunk) const;

 private:
  /// A name that one entry makes, and the indices of its name axes that it is made for: a run of
  /// one, or all that the axis has when the name does not ask for the axis.
  struct Made {
    StoredName stored;
    std::vector<std::vector<Run>> indices;  ///< as `shown` only kept where axes can be in front
    std::vector<bool> shown;                ///< per name axis: a field of the name shows it
  };
  struct Merged;

  /// The state of going through the indices of one entry.
  struct Walk {
    std::uint32_t entry = 0;
    PipelineChunk const* chunk = nullptr;
    bool copy = false;
    std::vector<SideVariable> variables;
    std::vector<Made> made;
  };

  int placed(SideEntry const& entry, PipelineChunk const* chunk) const;
  bool at_place(SideEntry const& entry, std::string const& place, PipelineChunk const& chunk) const;
  bool in_domain(SideEntry const& entry, AxisId axis, Index value) const;
  bool on_chunk(SideEntry const& entry, Walk const& walk) const;
  void check_count(SideEntry const& entry) const;
  void enumerate(Walk& walk) const;
  void make_leaf(Walk& walk) const;
  void check_parts(Walk const& walk, std::string const& name) const;
  std::vector<Run> domain(SideEntry const& entry, AxisId axis, Index count) const;
  static Index tuples(Made const& made);
  static void merge(Merged& merged, Made const& made);
  void finish(Merged& merged) const;
  void sort_by_layer(std::vector<StoredName>& names) const;

  Model const& model_;
  MapFile const& map_;
  SideOptions const& options_;
  SideScope const& scope_;
  SideShares const& shares_;
  std::vector<SideEntry> const& entries_;
  NameMaker maker_;
};

}  // namespace reshard
