#pragma once

#include <span>
#include <vector>

#include "core/mapping/sides/side_entry.hpp"
#include "core/mapping/sides/side_shares.hpp"

namespace reshard {

/// The dimensions that stored tensors of a global side have in front of their layout expression.
class SideFront {
 public:
  /// Both outlive the object.
  SideFront(Model const& model, SideShares const& shares) : model_(model), shares_(shares) {}

  /// The shape after the axes in front, with them.
  static std::vector<Index> shape(StoredName const& name, std::span<Index const> inner);

  /// Pieces of the layout after the axes in front -> pieces of the box [begin, end) of the whole;
  /// `inner` is the box' shape after them. A box that leaves an axis in front is an Error of kind
  /// source.
  std::vector<Piece> cross(StoredName const& name, std::vector<Piece> inner_pieces,
                           std::span<Index const> begin, std::span<Index const> end,
                           std::span<Index const> inner) const;

  /// The digits that the name fixes: those of its axes that are not in front.
  PieceDigits name_digits(SideEntry const& entry, StoredName const& name,
                          SidePlace const& place) const;
  /// Adds them to pieces.
  void add_name_digits(SideEntry const& entry, StoredName const& name, SidePlace const& place,
                       std::vector<Piece>& pieces) const;

  /// The rows of a rank after the axes in front -> its rows of the whole tensor; none where the
  /// name belongs to other ranks.
  std::vector<std::vector<Run>> rank_rows(SideEntry const& entry, StoredName const& name,
                                          SidePlace const& place,
                                          std::vector<std::vector<Run>> const& inner) const;

 private:
  Model const& model_;
  SideShares const& shares_;
};

}  // namespace reshard
