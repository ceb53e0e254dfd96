#include "core/mapping/expressions/placed_name.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/mapping/sides/side_entry.hpp"

namespace reshard {

PlacedName::PlacedName(Side const& side, StoredName const& name)
    : side_(side), name_(name), entry_(side.compiled(name.entry)) {
  RESHARD_EXPECT(name.front.empty());
}

std::size_t PlacedName::number(std::vector<std::size_t> const& axes, SidePlace const& place) const {
  return static_cast<std::size_t>(number_along(side_.mesh(), axes, place.at));
}

PlacedName::Shape& PlacedName::shape(SidePlace const& place) {
  std::size_t const at = number(entry_.cut_by, place);
  if (at >= shapes_.size()) shapes_.resize(at + 1);
  Shape& shape = shapes_[at];
  if (shape.layout != nullptr) return shape;
  shape.layout = &side_.layout(name_.entry, place);
  std::uint32_t const none = frame_of({});
  shape.without_frames = std::ranges::all_of(
      shape.layout->layout.pieces, [none](Piece const& piece) { return frame_of(piece) == none; });
  return shape;
}

std::span<InternedPiece const> PlacedName::pieces(SidePlace const& place) {
  Shape& here = shape(place);
  if (!here.without_frames) return side_.interned_pieces(name_, place);
  if (here.layout->layout.pieces.empty()) return {};
  std::size_t const at = number(entry_.named_by, place);
  if (at >= frames_.size()) frames_.resize(at + 1);
  if (here.pieces.empty() || !frames_[at]) {
    auto const found = side_.interned_pieces(name_, place);
    here.pieces.assign(found.begin(), found.end());
    frames_[at] = found.front().frame;
  }
  for (InternedPiece& piece : here.pieces) piece.frame = *frames_[at];
  return here.pieces;
}

}  // namespace reshard
