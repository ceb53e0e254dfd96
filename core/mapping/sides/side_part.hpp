#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/layout_expr.hpp"
#include "core/layout/pieces/piece.hpp"

namespace reshard {

/// The part of an axis that a stored name counts: (index mod `mod`) div `div`. With the digits in
/// the shape it makes up the index.
///
///   "weight{expert%2}" = "experts: (expert/2 moe_inter) hidden", 8 experts: mod 2, div 1. weight1
///   has experts 1, 3, 5 and 7.
struct AxisPart {
  Index mod = 1;
  Index div = 1;
  Index count() const { return mod / div; }
  friend bool operator==(AxisPart const&, AxisPart const&) = default;
};

/// The part of an axis, counted in units of `unit`, that digits of it leave out; mod 1 and div 1
/// when they leave nothing out. Nothing when a size is unknown, when digits overlap, or when they
/// leave out more than one part: the proof of coverage finds words for these. `size_of` gives the
/// value of a named size.
std::optional<AxisPart> part_left(
    std::span<LayoutExpr::Digit const> digits, Index size, Index unit,
    std::function<std::optional<Index>(std::string const&)> const& size_of);

}  // namespace reshard
