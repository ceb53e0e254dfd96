#pragma once

#include <string_view>
#include <vector>

#include "core/layout/layout_expr.hpp"
#include "core/layout/pieces/piece.hpp"

namespace reshard {

/// An expression with every name and count resolved under given shares. Internal to this library.
/// Borrows the tags from its expression.
struct LayoutNode {
  enum class Kind { one, digit, fill, product, alternatives };

  /// Stored indices [position, position + count) of a digit: the values first, first + 1, … or
  /// elements of no tensor.
  struct Stretch {
    Index position = 0;
    Index count = 0;
    Index first = 0;
    bool fill = false;
  };

  Kind kind = Kind::one;
  Index extent = 1;
  Index inner =
      1;  ///< in a product: the extent of all factors after this one, its stride within the product
  std::string_view tag;  ///< kind product
  AxisId axis = 0;       ///< kind digit, as the four below
  Index mod = 1;
  Index div = 1;
  bool repeat = false;
  std::vector<Stretch> stretches;
  std::vector<LayoutNode> children;  ///< the factors of a product, the products of alternatives
};

/// The product of all stored dimensions; children[d] is dimension d.
LayoutNode layout_tree(LayoutExpr const& expr, LayoutScope const& scope, Shares const& shares);

}  // namespace reshard
