#pragma once

#include "core/mapping/side_entry.hpp"
#include "core/mapping/side_scope.hpp"

namespace reshard {

/// Which share of each axis a place holds, and what an entry's bytes mean under it.
class SideShares {
 public:
  /// All outlive the shares.
  SideShares(Model const& model, MapFile const& map, SideOptions const& options, SideScope const& scope)
      : model_(model), map_(map), options_(options), scope_(scope) {}

  /// The rule that cuts an axis of an entry, or nullptr.
  AxisRule const* rule_of(SideEntry const& entry, AxisId axis) const;
  /// The rank of a place along a mesh axis.
  static int mesh_rank(std::string_view mesh, SidePlace const& place);
  /// The size of an axis after padding.
  Index padded(AxisRule const& rule, Index size) const;
  /// How many positions a share of the axis has: the same on every rank.
  Index positions(SideEntry const& entry, AxisId axis) const;
  EntryLayout evaluate_entry(SideEntry const& entry, SidePlace const& place) const;
  /// Whether what the entry means depends on the rank along a mesh axis.
  bool depends_on(SideEntry const& entry, std::string_view mesh) const;

 private:
  int mesh_size(std::string_view mesh) const;
  bool cuts_rows(AxisRule const& rule, Index size) const;
  void check_divisible(AxisRule const& rule, Index size) const;
  Share share(AxisRule const& rule, Index size, SidePlace const& place) const;
  Layout evaluate_rows(SideEntry const& entry, AxisRule const& rule, LayoutScope const& context, Shares const& shares, SidePlace const& place) const;

  Model const& model_;
  MapFile const& map_;
  SideOptions const& options_;
  SideScope const& scope_;
};

}  // namespace reshard
