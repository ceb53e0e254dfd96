#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/mapping/sides/side.hpp"

namespace reshard {

/// A stored name of a local side, for one that goes through many places: what the bytes under it
/// mean is found once for each part of the tensor (places differ along SideEntry::cut_by), and
/// the indices of its name once for each of these (along SideEntry::named_by).
class PlacedName {
 public:
  /// Borrows both. Pre: SideOptions::local.
  PlacedName(Side const& side, StoredName const& name);

  /// Side::layout() of the name's entry.
  EntryLayout const& layout(SidePlace const& place) { return *shape(place).layout; }
  /// Side::interned_pieces() of the name. Valid until the next call.
  std::span<InternedPiece const> pieces(SidePlace const& place);

 private:
  /// Meaning of one part of the tensor.
  struct Shape {
    EntryLayout const* layout = nullptr;
    bool without_frames = false;        ///< the frame of each piece is that of the name
    std::vector<InternedPiece> pieces;  ///< in some place, where it is without frames
  };

  std::size_t number(std::vector<std::size_t> const& axes, SidePlace const& place) const;
  Shape& shape(SidePlace const& place);

  Side const& side_;
  StoredName const& name_;
  SideEntry const& entry_;
  std::vector<Shape> shapes_;                         ///< by number() along cut_by
  std::vector<std::optional<std::uint32_t>> frames_;  ///< by number() along named_by
};

}  // namespace reshard
