#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/axis.hpp"

namespace reshard {

/// How logical axes make up a stored tensor, one factor per stored dimension
/// (docs/formats/layout-expressions.md):
///
///   attn: (group (q: head dim | k: dim | v: dim)) hidden        a fused, grouped QKV matrix of two
///   dimensions experts: expert hidden (moe_inter (gate: | up:))            gate and up interleaved
///   in the last of three
///
/// Juxtaposition is a row-major product, '|' concatenates, tags met from outside inwards and joined
/// by dots name the logical tensor.
struct LayoutExpr {
  struct Product;

  /// (index mod `mod`) div `div` of an axis; mod "" is the whole axis, div "" is 1. Counts are
  /// integers or names of sizes.
  struct Digit {
    std::string axis;
    std::string mod;
    std::string div;
    bool repeat = false;     ///< '*axis': the values repeat along it
    std::size_t column = 0;  ///< where it is in the text, from 1
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

  /// Every logical tensor that the expression holds, in order, without repeats: "attn.q", "attn.k",
  /// "attn.v".
  std::vector<std::string> tensors() const;
  /// The axes whose digits belong to this logical tensor (those outside of all alternatives
  /// included), in order, each part of an axis once. An axis that its values only repeat along
  /// ('*axis') is not among them.
  std::vector<Digit> digits_of(std::string_view tensor) const;
};

/// Parses an expression. A mistake is an Error of kind usage that shows the text and the column.
LayoutExpr parse_layout(std::string_view text);

}  // namespace reshard
