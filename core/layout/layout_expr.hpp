#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/axis.hpp"

namespace reshard {

/// The composition of a stored tensor from logical axes, one factor per stored dimension
/// (docs/formats/layout-expressions.md):
///
///   attn: (group (q: head dim | k: dim | v: dim)) hidden   a fused, grouped QKV matrix
///   experts: expert hidden (moe_inter (gate: | up:))       gate and up interleaved, 3 dimensions
///
/// Juxtaposition is a row-major product, '|' concatenates; the tags from outside inwards, joined by
/// dots, name the logical tensor.
struct LayoutExpr {
  struct Product;

  /// (index mod `mod`) div `div` of an axis; mod "" is the complete axis, div "" is 1. Counts are
  /// integers or names of sizes.
  struct Digit {
    std::string axis;
    std::string mod;
    std::string div;
    bool repeat = false;     ///< '*axis': the values repeat along it
    std::size_t column = 0;  ///< column in the text, from 1
  };

  struct Factor {
    enum class Kind { digit, one, fill, alternatives };
    Kind kind = Kind::one;
    Digit digit;                        ///< kind digit
    std::string count;                  ///< kind fill
    std::vector<Product> alternatives;  ///< kind alternatives: one or more, concatenated
  };

  struct Product {
    std::string tag;  ///< "" for none
    std::vector<Factor> factors;
  };

  std::string text;  ///< as written
  std::string tag;
  std::vector<Factor> dims;

  /// The logical tensors of the expression, in order, without repeats: "attn.q", "attn.k",
  /// "attn.v".
  std::vector<std::string> tensors() const;
  /// The axes whose digits belong to this logical tensor (those outside of all alternatives
  /// included), in order, each part of an axis once. A repeated axis ('*axis') is not among them.
  std::vector<Digit> digits_of(std::string_view tensor) const;
};

/// Parses an expression. A mistake is an Error of kind usage that shows the text and the column.
LayoutExpr parse_layout(std::string_view text);

}  // namespace reshard
