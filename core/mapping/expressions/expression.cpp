#include "core/mapping/expressions/expression.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/tables/counted.hpp"
#include "core/base/tables/integers.hpp"
#include "core/mapping/expressions/expression_node.hpp"

namespace reshard {
namespace {

using Node = Expression::Node;

bool truth(Json const& value) {
  if (value.is_null()) return false;
  if (auto const* flag = value.boolean()) return *flag;
  if (auto const* number = value.integer()) return *number != 0;
  if (auto const* real = value.real()) return *real != 0;
  if (auto const* text = value.text()) return !text->empty();
  if (auto const* items = value.items()) return !items->empty();
  return true;
}

std::optional<std::int64_t> as_integer(Json const& value) {
  if (auto const* number = value.integer()) return *number;
  if (auto const* flag = value.boolean()) return *flag ? 1 : 0;
  if (auto const* real = value.real())
    if (*real >= -9e15 && *real <= 9e15 &&
        static_cast<double>(static_cast<std::int64_t>(*real)) == *real)
      return static_cast<std::int64_t>(*real);
  return std::nullopt;
}

constexpr std::size_t longest_text = std::size_t{1} << 20;

class Evaluation {
 public:
  Evaluation(ExpressionScope const& scope, std::string_view text, std::string_view place)
      : scope_(scope), text_(text), place_(place) {}

  Json value(Node const& node) const {
    switch (node.kind) {
      case Node::Kind::literal: return node.literal;
      case Node::Kind::key: return key(node.word);
      case Node::Kind::index: return element(node);
      case Node::Kind::call: return call(node);
      case Node::Kind::unary: return unary(node);
      case Node::Kind::binary: return binary(node);
    }
    return {};
  }

  template <class... Args>
  [[noreturn]] void mistake(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::usage, "{}: '{}': {}", place_, text_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  std::int64_t integer(Json const& v, std::string_view role) const {
    if (auto const number = as_integer(v)) return *number;
    mistake("{} must be an integer, it is {}. Check the configuration this map is used with.", role,
            v.dump());
  }

 private:
  Json key(std::string const& name) const {
    std::optional<Json> found = scope_.key(name);
    if (!found)
      mistake(
          "'{}' is not defined here. Check its spelling, or give a default with 'key ?\? "
          "value'.",
          name);
    return std::move(*found);
  }

  Json element(Node const& node) const {
    Json const whole = value(*node.children[0]);
    if (scope_.absent_spreads && whole.is_null()) return {};
    std::int64_t const at = integer(value(*node.children[1]), "an index");
    if (auto const* text = whole.text()) {
      if (at < 0 || at >= static_cast<std::int64_t>(text->size()))
        mistake("{}[{}]: the string has {} characters", node.word, at, text->size());
      return std::string(1, (*text)[static_cast<std::size_t>(at)]);
    }
    if (auto const* items = whole.items()) {
      if (at < 0 || at >= static_cast<std::int64_t>(items->size()))
        mistake("{}[{}]: the list has {} items", node.word, at, items->size());
      return (*items)[static_cast<std::size_t>(at)];
    }
    mistake("{} is neither a list nor a string, it is {}", node.word, whole.dump());
  }

  Json unary(Node const& node) const {
    Json const operand = value(*node.children[0]);
    if (node.word == "not") return truth(operand) ? 0 : 1;
    return difference(0, integer(operand, "the operand of '-'"));
  }

  Json binary(Node const& node) const {
    std::string const& symbol = node.word;
    if (symbol == "??") return fallback(node);
    if (symbol == "and")
      return truth(value(*node.children[0])) && truth(value(*node.children[1])) ? 1 : 0;
    if (symbol == "or")
      return truth(value(*node.children[0])) || truth(value(*node.children[1])) ? 1 : 0;
    Json const left = value(*node.children[0]);
    Json const right = value(*node.children[1]);
    if (symbol == "==" || symbol == "!=") return equal(left, right) == (symbol == "==") ? 1 : 0;
    if (scope_.absent_spreads && (left.is_null() || right.is_null())) return {};
    if (symbol == "+" && left.text() != nullptr && right.text() != nullptr) {
      if (left.text()->size() + right.text()->size() > longest_text)
        mistake("a string of more than {} characters", longest_text);
      return *left.text() + *right.text();
    }
    if (symbol == "*" && left.text() != nullptr)
      return repeated(*left.text(), integer(right, "the count of a repeated string"));
    return arithmetic(symbol, integer(left, "the left side of '" + symbol + "'"),
                      integer(right, "the right side of '" + symbol + "'"));
  }

  /// a ?? b: b when a is absent, unknown or null; mistakes inside a other than an unknown key still
  /// count.
  Json fallback(Node const& node) const {
    Node const& first = *node.children[0];
    if (first.kind == Node::Kind::key) {
      std::optional<Json> found = scope_.key(first.word);
      if (found && !found->is_null()) return std::move(*found);
      return value(*node.children[1]);
    }
    Json found = value(first);
    return found.is_null() ? value(*node.children[1]) : found;
  }

  static bool equal(Json const& a, Json const& b) {
    auto const x = as_integer(a);
    auto const y = as_integer(b);
    return x && y ? *x == *y : a == b;
  }

  Json repeated(std::string const& text, std::int64_t times) const {
    if (times < 0 || times > 1'000'000)
      mistake("a string is repeated {} times; 0 to 1000000 is allowed", times);
    if (text.size() * static_cast<std::size_t>(times) > longest_text)
      mistake("a string of more than {} characters", longest_text);
    std::string out;
    for (std::int64_t i = 0; i < times; ++i) out += text;
    return out;
  }

  Json arithmetic(std::string const& symbol, std::int64_t a, std::int64_t b) const {
    if (symbol == "+") return checked_add(a, b, ErrorKind::usage, place_);
    if (symbol == "-") return difference(a, b);
    if (symbol == "*") return checked_mul(a, b, ErrorKind::usage, place_);
    if (symbol == "<") return a < b ? 1 : 0;
    if (symbol == ">") return a > b ? 1 : 0;
    if (symbol == "<=") return a <= b ? 1 : 0;
    if (symbol == ">=") return a >= b ? 1 : 0;
    if (b <= 0) mistake("'{}' by {}; the divisor must be above zero", symbol, b);
    std::int64_t const remainder = a % b;  // of the sign of a
    if (symbol == "%") return remainder < 0 ? remainder + b : remainder;
    if (remainder != 0 && scope_.exact_division)
      mistake("{} / {} is not a whole number. {}", a, b, misfit_advice);
    return a / b - (remainder < 0 ? 1 : 0);
  }

  std::int64_t difference(std::int64_t a, std::int64_t b) const {
    std::int64_t result = 0;
    if (__builtin_sub_overflow(a, b, &result))
      mistake("{} - {} does not fit in 64 bits. Check the configuration this map is used with.", a,
              b);
    return result;
  }

  Json call(Node const& node) const {
    std::vector<Json> arguments;
    if (node.word == "if" && node.children.size() == 3)
      return value(*node.children[truth(value(*node.children[0])) ? 1 : 2]);
    for (auto const& child : node.children) arguments.push_back(value(*child));
    if (auto found = built_in(node.word, arguments)) return std::move(*found);
    if (scope_.call)
      if (auto found = scope_.call(node.word, arguments)) return std::move(*found);
    mistake(
        "there is no function {} with {} arguments. Known: min, max, len, ceil_div, count, "
        "contains, freq, list, indices, split, join, translate, inverse_sqrt, if, exists, has.",
        node.word, arguments.size());
  }

  std::optional<Json> built_in(std::string const& name, std::vector<Json> const& a) const {
    if ((name == "min" || name == "max") && !a.empty()) {
      std::int64_t best = integer(a[0], "an argument");
      for (Json const& item : a) {
        std::int64_t const number = integer(item, "an argument");
        best = name == "min" ? std::min(best, number) : std::max(best, number);
      }
      return best;
    }
    if (name == "indices" && a.size() == 1 && a[0].items() != nullptr)
      return indices(*a[0].items());
    if (name == "list") return Json(Json::Array(a.begin(), a.end()));
    if (name == "len" && a.size() == 1) return length(a[0]);
    if (name == "ceil_div" && a.size() == 2) {
      std::int64_t const divisor = integer(a[1], "the divisor");
      if (divisor <= 0) mistake("ceil_div by {}; the divisor must be above zero", divisor);
      std::int64_t const dividend = integer(a[0], "the dividend");
      return dividend / divisor + (dividend % divisor > 0 ? 1 : 0);
    }
    if (name == "inverse_sqrt" && a.size() == 1) {
      if (a[0].is_null()) return Json();
      std::int64_t const square = integer(a[0], "the argument");
      if (square <= 0) mistake("inverse_sqrt of {}; it must be above zero", square);
      return 1.0 / std::sqrt(static_cast<double>(square));
    }
    if (name == "contains" && a.size() == 2) return count(a[0], a[1]) > 0 ? 1 : 0;
    if (name == "count" && a.size() == 2) return count(a[0], a[1]);
    if (name == "translate" && a.size() == 3 && a[1].items() != nullptr && a[2].items() != nullptr)
      return translate(a[0], *a[1].items(), *a[2].items());
    if (name == "split" && a.size() == 2 && a[1].text() != nullptr && !a[1].text()->empty())
      return split(a[0], *a[1].text());
    if (name == "join" && a.size() == 2 && a[1].text() != nullptr)
      return joined(a[0], *a[1].text());
    if (name == "freq" && a.size() == 2) return frequency(a[0], integer(a[1], "the layer number"));
    return std::nullopt;
  }

  /// Every item of a list, replaced by the word in the place where it stands among `from`.
  Json translate(Json const& list, Json::Array const& from, Json::Array const& to) const {
    if (list.is_null()) return {};
    if (list.items() == nullptr || from.size() != to.size())
      mistake("translate needs a list and two lists of equal length");
    Json::Array result;
    for (Json const& item : *list.items()) {
      auto const found = std::find_if(from.begin(), from.end(),
                                      [&](Json const& word) { return equal(word, item); });
      if (found == from.end()) mistake("{} is not one of {}", item.dump(), Json(from).dump());
      result.push_back(to[static_cast<std::size_t>(found - from.begin())]);
    }
    return Json(std::move(result));
  }

  /// The parts between the separators.
  Json split(Json const& whole, std::string const& separator) const {
    if (whole.is_null()) return {};
    if (whole.text() == nullptr) mistake("split needs a string, found {}", whole.dump());
    Json::Array parts;
    std::size_t begin = 0;
    for (std::size_t at = 0; (at = whole.text()->find(separator, begin)) != std::string::npos;
         begin = at + separator.size())
      parts.emplace_back(whole.text()->substr(begin, at - begin));
    parts.emplace_back(whole.text()->substr(begin));
    return Json(std::move(parts));
  }

  Json joined(Json const& list, std::string const& between) const {
    if (list.is_null()) return {};
    std::string result;
    if (list.items() == nullptr) mistake("join needs a list, found {}", list.dump());
    for (Json const& item : *list.items()) {
      if (item.text() == nullptr) mistake("join needs strings, found {}", item.dump());
      result += (&item == list.items()->data() ? "" : between) + *item.text();
      if (result.size() > longest_text)
        mistake("a string of more than {} characters", longest_text);
    }
    return Json(std::move(result));
  }

  static Json indices(Json::Array const& flags) {
    Json::Array result;
    for (std::size_t i = 0; i < flags.size(); ++i)
      if (truth(flags[i])) result.emplace_back(static_cast<std::int64_t>(i));
    return Json(std::move(result));
  }

  Json length(Json const& value) const {
    if (auto const* text = value.text()) return static_cast<std::int64_t>(text->size());
    if (auto const* items = value.items()) return static_cast<std::int64_t>(items->size());
    if (value.is_null()) return 0;
    mistake("len of {}; a list or a string is needed", value.dump());
  }

  std::int64_t count(Json const& whole, Json const& item) const {
    std::int64_t found = 0;
    if (auto const* text = whole.text()) {
      if (item.text() != nullptr && !item.text()->empty())
        for (std::size_t at = text->find(*item.text()); at != std::string::npos;
             at = text->find(*item.text(), at + 1))
          ++found;
      return found;
    }
    if (auto const* items = whole.items())
      return std::count_if(items->begin(), items->end(),
                           [&](Json const& i) { return equal(i, item); });
    if (whole.is_null()) return 0;
    mistake("{} is neither a list nor a string", whole.dump());
  }

  /// Megatron's moe_layer_freq: an integer k (every k-th layer, from 0) or one 0/1 per layer.
  Json frequency(Json const& rule, std::int64_t layer) const {
    if (auto const* items = rule.items()) {
      if (layer < 0 || layer >= static_cast<std::int64_t>(items->size()))
        mistake("layer {} of a list of {}", layer, counted(items->size(), "layer"));
      return truth((*items)[static_cast<std::size_t>(layer)]) ? 1 : 0;
    }
    std::int64_t const every = integer(rule, "a layer frequency");
    if (every <= 0) mistake("a layer frequency of {}; it must be above zero", every);
    return layer % every == 0 ? 1 : 0;
  }

  ExpressionScope const& scope_;
  std::string_view text_;
  std::string_view place_;
};

void collect_keys(Node const& node, std::vector<std::string>& keys) {
  if (node.kind == Node::Kind::key) keys.push_back(node.word);
  for (auto const& child : node.children) collect_keys(*child, keys);
}

}  // namespace

Expression Expression::parse(std::string_view text, std::string_view place) {
  Expression result;
  result.text_ = text;
  result.place_ = place;
  result.root_ = parse_expression(text, place);
  return result;
}

std::string_view Expression::single_key() const {
  return root_ != nullptr && root_->kind == Node::Kind::key ? std::string_view(root_->word)
                                                            : std::string_view();
}

std::vector<std::string> Expression::keys() const {
  std::vector<std::string> keys;
  if (root_ != nullptr) collect_keys(*root_, keys);
  return keys;
}

Json Expression::evaluate(ExpressionScope const& scope) const {
  RESHARD_EXPECT(root_ != nullptr);
  return Evaluation(scope, text_, place_).value(*root_);
}

std::int64_t Expression::integer(ExpressionScope const& scope) const {
  return Evaluation(scope, text_, place_).integer(evaluate(scope), "the result");
}

bool Expression::holds(ExpressionScope const& scope) const { return truth(evaluate(scope)); }

}  // namespace reshard
