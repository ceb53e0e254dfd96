#pragma once

#include <string>
#include <vector>

#include "core/layout/layout_tree.hpp"

namespace reshard {

/// An affine part of the index space of a node: as a Piece, before its tensor is known. Internal to
/// this library.
struct LayoutPart {
  struct Dim {
    PieceDigit digit;      ///< count and stride always; the rest when `indexed`
    bool indexed = false;  ///< false: a repeat, or a dimension of a fill
  };

  std::string name;  ///< the tags from outside inwards, joined by dots
  std::vector<Dim> dims;
  Index offset = 0;
  bool fill = false;
};

/// The parts of a node's indices [begin, end), in stored order. Offsets count from the node's index
/// 0. Pre: 0 <= begin and end <= node.extent.
std::vector<LayoutPart> parts(LayoutNode const& node, Index begin, Index end);

/// Multiplies offsets and strides by `by`.
void scale(std::vector<LayoutPart>& all, Index by);

/// Every part of `outer` with every part of `inner`, offsets added.
std::vector<LayoutPart> cross(std::vector<LayoutPart> const& outer,
                              std::vector<LayoutPart> const& inner);

/// Puts a tag in front of every name.
void prefix(std::vector<LayoutPart>& all, std::string_view tag);

}  // namespace reshard
