#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapping/expressions/expression.hpp"

namespace reshard {

/// One node of an expression's tree.
struct Expression::Node {
  enum class Kind { literal, key, index, call, unary, binary };
  Kind kind = Kind::literal;
  Json literal;
  std::string word;  ///< key; function; operator
  std::vector<std::shared_ptr<Node const>> children;
};

/// The tree of a text; Errors begin with `place`.
std::shared_ptr<Expression::Node const> parse_expression(std::string_view text,
                                                         std::string_view place);

}  // namespace reshard
