#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"

namespace reshard {

/// The last sentence of an Error whose cause is the configuration, not the map.
inline constexpr std::string_view misfit_advice = "The configuration does not fit this map.";

/// Meanings of the words of an expression. Values are JSON values; null is "absent".
struct ExpressionScope {
  /// The value of a key (dots included: "text_config.hidden_size", "layer.moe"); nothing when no
  /// such key is known, null when known but empty.
  std::function<std::optional<Json>(std::string_view key)> key;
  /// A function that expressions of this place may call beside the built-in ones: exists('tensor'),
  /// has('stored name').
  std::function<std::optional<Json>(std::string_view name, std::span<Json const> arguments)> call;
  /// Division with a remainder is an Error (sizes), else it floors (numbers, conditions).
  bool exact_division = false;
  /// Arithmetic with an absent value is absent, instead of an Error: for axes and sets that a model
  /// may lack.
  bool absent_spreads = false;
};

/// An expression of a model map (docs/model-maps.md): integers, 'text', keys, key[index], f(…), + -
/// * / %, ??, comparisons, and, or, not, true, false, null. Functions: min, max, len, ceil_div,
/// count, contains, freq, list, indices, split, join, translate, if.
class Expression {
 public:
  struct Node;

  Expression() = default;
  /// A mistake is an Error of kind usage that shows the text and the column; `place` is put in
  /// front.
  static Expression parse(std::string_view text, std::string_view place);

  bool empty() const { return root_ == nullptr; }
  std::string const& text() const { return text_; }
  /// When the whole expression is one key: that key; else "".
  std::string_view single_key() const;
  /// Every key that is in it.
  std::vector<std::string> keys() const;

  /// An unknown key (outside of `??`), a wrong type, an inexact division are Errors of kind usage
  /// with the place.
  Json evaluate(ExpressionScope const& scope) const;
  /// The same, where the result must be an integer.
  std::int64_t integer(ExpressionScope const& scope) const;
  /// The same as a condition: 0, null, false and empty text are false.
  bool holds(ExpressionScope const& scope) const;

 private:
  std::string text_;
  std::string place_;
  std::shared_ptr<Node const> root_;
};

}  // namespace reshard
