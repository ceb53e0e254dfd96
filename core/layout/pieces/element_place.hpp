#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/layout/axis.hpp"
#include "core/layout/layout_expr.hpp"

namespace reshard {

// Maps ONE element of a stored tensor to its logical tensor, and back: a second, independent
// arithmetic to check the first (evaluate.hpp and its users). It interprets a layout expression
// literally, index by index (docs/formats/layout-expressions.md, 2 and 3), without pieces, strides,
// boxes or joins. It is slow. Do not use it for anything else, and not in a plan.

/// An expression with its axes and counts as numbers.
struct ElementTree {
  struct Product;
  struct Factor {
    LayoutExpr::Factor::Kind kind = LayoutExpr::Factor::Kind::one;
    AxisId axis = 0;
    Index mod = 0;  ///< 0: the complete axis
    Index div = 1;
    bool repeat = false;
    Index count = 0;  ///< kind fill
    std::vector<Product> alternatives;
  };
  struct Product {
    std::string tag;
    std::vector<Factor> factors;
  };
  std::string tag;
  std::vector<Factor> dims;
};

/// `size` gives the value of a named count. An unknown axis or count is an Error of kind usage.
ElementTree element_tree(LayoutExpr const& expr, AxisTable const& axes,
                         std::function<std::optional<Index>(std::string_view)> const& size);

/// An element of a logical tensor: the index along each axis, by AxisId; -1 where the tensor lacks
/// it.
struct LogicalElement {
  std::string tensor;
  std::vector<Index> at;
};

/// The parameters of one stored tensor in one place; derived values are not kept.
struct ElementRule {
  /// The part of an axis in a place; an axis that is not listed is complete.
  struct Held {
    AxisId axis = 0;
    std::vector<Run> runs;
  };
  /// The stored name contains (index mod `mod`) div `div` of an axis; mod 0: of the complete axis.
  struct Named {
    AxisId axis = 0;
    Index mod = 0;
    Index div = 1;
    Index value = 0;
  };
  /// A dimension before those of the expression, with its indices of an axis, ascending.
  struct Front {
    AxisId axis = 0;
    std::vector<Index> indices;
  };
  /// The place contains rows [begin, begin + count) of one dimension of the expression.
  struct Rows {
    std::size_t dim = 0;
    Index begin = 0;
    Index count = 0;
  };

  /// The same bytes may be of several tensors; all trees have one shape.
  std::vector<std::shared_ptr<ElementTree const>> trees;
  std::vector<Held> held;
  std::vector<Named> named;
  std::vector<Front> front;
  std::optional<Rows> rows;
};

/// The extents of the stored tensor in this place, front dimensions first.
std::vector<Index> element_shape(ElementRule const& rule, AxisTable const& axes);

/// The logical element of a stored element, by the first tree; nullopt for padding. Pre: the index
/// is in element_shape().
std::optional<LogicalElement> element_at(ElementRule const& rule, AxisTable const& axes,
                                         std::span<Index const> index);

/// The index of the stored element that is this logical one, the first of several; nullopt if the
/// place does not contain it.
std::optional<std::vector<Index>> place_of(ElementRule const& rule, AxisTable const& axes,
                                           LogicalElement const& element);

}  // namespace reshard
