#pragma once

#include <span>
#include <vector>

#include "core/mapping/sides/side_entry.hpp"
#include "core/mapping/sides/side_scope.hpp"

namespace reshard {

/// Which share of each axis a place holds, and what an entry's bytes mean under it.
class SideShares {
 public:
  /// All outlive the shares.
  SideShares(Model const& model, MapFile const& map, SideOptions const& options,
             SideScope const& scope)
      : model_(model), map_(map), options_(options), scope_(scope) {}

  /// The rule that cuts what a file holds of an axis of an entry, or nullptr: on a global side none
  /// does.
  AxisRule const* rule_of(SideEntry const& entry, AxisId axis) const {
    return options_.local ? rank_rule_of(entry, axis) : nullptr;
  }
  /// The rule by which ranks share an axis of an entry, or nullptr.
  AxisRule const* rank_rule_of(SideEntry const& entry, AxisId axis) const;
  /// The coordinate of a place along a mesh axis.
  Index mesh_rank(std::string_view mesh, SidePlace const& place) const {
    return options_.mesh.coordinate(place.at, mesh);
  }
  /// The numbers of the mesh axes above 1 by which ranks share the shape of an entry, and those by
  /// which they share the indices in its name.
  std::vector<std::size_t> cut_by(SideEntry const& entry) const;
  std::vector<std::size_t> named_by(SideEntry const& entry) const;
  /// The size of an axis after padding.
  Index padded(AxisRule const& rule, Index size) const;
  /// How many positions a share of the axis has: the same on every rank.
  Index positions(SideEntry const& entry, AxisId axis) const;
  EntryLayout evaluate_entry(SideEntry const& entry, SidePlace const& place) const;
  /// Local sides: the elements [begin, end) of a place's row-major share of an entry; offset 0 is
  /// element `begin`.
  std::vector<Piece> evaluate_entry_flat(SideEntry const& entry, SidePlace const& place,
                                         Index begin, Index end) const;
  /// The shape of a part of a quantised weight of this entry. Blocks that do not fit are an Error
  /// of kind usage.
  std::vector<Index> part_shape(SideEntry const& entry, QuantPart const& part,
                                SidePlace const& place) const;
  /// Global sides: the part of an entry in a box of its dimensions, without axes in front.
  Layout evaluate_entry_box(SideEntry const& entry, std::span<Index const> begin,
                            std::span<Index const> end) const;
  /// Global sides: the rows that a rank holds of every dimension of an entry, without axes in
  /// front; padding counts as rows.
  std::vector<std::vector<Run>> rank_rows(SideEntry const& entry, SidePlace const& place) const;
  /// Whether the model has what an entry stores, and the entry's condition holds.
  bool usable(SideEntry const& entry) const;
  /// Whether the mesh divides all that it cuts of an entry, and cuts no block of a quantised
  /// weight.
  bool fits(SideEntry const& entry) const;
  /// The indices that a rank holds of an axis in front or in the name, without padding.
  Run rank_run(AxisRule const& rule, AxisId axis, SidePlace const& place) const;

 private:
  /// A box of the whole stored tensor.
  struct Rows {
    std::vector<Index> begin;
    std::vector<Index> end;
    std::size_t cut = 0;  ///< the dimension that is cut
  };
  /// A place's shares of the axes of an entry.
  struct Held {
    Shares shares;
    AxisRule const* row_rule = nullptr;  ///< cuts the stored rows instead of an axis
  };
  Held held(SideEntry const& entry, SidePlace const& place) const;
  std::vector<std::size_t> mesh_axes_of(SideEntry const& entry,
                                        std::vector<AxisId> const& axes) const;
  Index mesh_size(std::string_view mesh) const { return options_.mesh.size(mesh); }
  bool cuts_rows(AxisRule const& rule, Index size) const;
  void check_divisible(AxisRule const& rule, Index size) const;
  std::string choice(AxisRule const& rule, Index whole) const;
  Share share(AxisRule const& rule, Index size, SidePlace const& place) const;
  Shares padding(SideEntry const& entry) const;
  AxisTable padded_axes() const;
  LayoutScope context(AxisTable const& axes) const;
  void check_cut(SideEntry const& entry, AxisRule const& rule, Index size) const;
  Rows cut_rows(SideEntry const& entry, AxisRule const& rule, std::vector<Index> const& shape,
                SidePlace const& place) const;

  Model const& model_;
  MapFile const& map_;
  SideOptions const& options_;
  SideScope const& scope_;
};

}  // namespace reshard
