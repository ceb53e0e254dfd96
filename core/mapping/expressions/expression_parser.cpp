#include <cctype>

#include "core/mapping/expressions/expression_node.hpp"

namespace reshard {
namespace {

using NodePtr = std::shared_ptr<Expression::Node const>;
using Kind = Expression::Node::Kind;

constexpr int deepest = 64;

class Parser {
 public:
  Parser(std::string_view text, std::string_view place) : text_(text), place_(place) {}

  NodePtr whole() {
    NodePtr node = disjunction(0);
    skip_space();
    if (at_ != text_.size()) mistake("an operator or the end");
    return node;
  }

 private:
  [[noreturn]] void mistake(std::string_view expected) const {
    std::string const found =
        at_ < text_.size() ? fmt::format("'{}'", text_.substr(at_, 12)) : "the end";
    fail(
        ErrorKind::usage,
        "{}: '{}': {} expected at column {}, found {}. See docs/model-maps.md for the expression language.",
        place_, text_, expected, at_ + 1, found);
  }

  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  static bool word_char(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  }

  /// Takes an operator; one made of letters must end there.
  bool take(std::string_view symbol) {
    skip_space();
    if (text_.substr(at_, symbol.size()) != symbol) return false;
    std::size_t const after = at_ + symbol.size();
    if (word_char(symbol.back()) && after < text_.size() && word_char(text_[after])) return false;
    at_ = after;
    return true;
  }

  static NodePtr make(Kind kind, std::string_view word, std::vector<NodePtr> children) {
    auto node = std::make_shared<Expression::Node>();
    node->kind = kind;
    node->word = word;
    node->children = std::move(children);
    return node;
  }

  void check_depth(int depth) const {
    if (depth > deepest)
      fail(ErrorKind::usage, "{}: an expression nested deeper than {} levels. Split it with [let].",
           place_, deepest);
  }

  NodePtr disjunction(int depth) {
    check_depth(depth);
    NodePtr left = conjunction(depth);
    while (take("or")) left = make(Kind::binary, "or", {left, conjunction(depth)});
    return left;
  }

  NodePtr conjunction(int depth) {
    NodePtr left = negation(depth);
    while (take("and")) left = make(Kind::binary, "and", {left, negation(depth)});
    return left;
  }

  NodePtr negation(int depth) {
    check_depth(depth);
    if (take("not")) return make(Kind::unary, "not", {negation(depth + 1)});
    return comparison(depth);
  }

  NodePtr comparison(int depth) {
    NodePtr left = fallback(depth);
    for (std::string_view symbol : {"==", "!=", "<=", ">=", "<", ">"})
      if (take(symbol)) return make(Kind::binary, symbol, {left, fallback(depth)});
    return left;
  }

  NodePtr fallback(int depth) {
    NodePtr left = sum(depth);
    if (take("??")) return make(Kind::binary, "??", {left, fallback(depth + 1)});
    return left;
  }

  NodePtr sum(int depth) {
    check_depth(depth);
    NodePtr left = term(depth);
    for (;;) {
      if (take("+"))
        left = make(Kind::binary, "+", {left, term(depth)});
      else if (take("-"))
        left = make(Kind::binary, "-", {left, term(depth)});
      else
        return left;
    }
  }

  NodePtr term(int depth) {
    NodePtr left = atom(depth);
    for (;;) {
      if (take("*"))
        left = make(Kind::binary, "*", {left, atom(depth)});
      else if (take("/"))
        left = make(Kind::binary, "/", {left, atom(depth)});
      else if (take("%"))
        left = make(Kind::binary, "%", {left, atom(depth)});
      else
        return left;
    }
  }

  NodePtr atom(int depth) {
    check_depth(depth);
    skip_space();
    if (at_ >= text_.size()) mistake("a value");
    char const c = text_[at_];
    if (take("-")) return make(Kind::unary, "-", {atom(depth + 1)});
    if (take("(")) {
      NodePtr inner = disjunction(depth + 1);
      if (!take(")")) mistake("')'");
      return inner;
    }
    if (c == '\'') return text_literal();
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) return number();
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') return word(depth);
    mistake("a value");
  }

  NodePtr literal(Json value) const {
    auto node = std::make_shared<Expression::Node>();
    node->literal = std::move(value);
    return node;
  }

  NodePtr text_literal() {
    std::size_t const end = text_.find('\'', at_ + 1);
    if (end == std::string_view::npos) mistake("a closing quote for the string");
    NodePtr node = literal(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return node;
  }

  NodePtr number() {
    std::size_t const begin = at_;
    while (at_ < text_.size() &&
           (std::isdigit(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '.'))
      ++at_;
    std::string const digits(text_.substr(begin, at_ - begin));
    if (digits.size() > 18) mistake("a number of at most 18 digits");
    if (digits.find('.') != std::string::npos) return literal(std::strtod(digits.c_str(), nullptr));
    return literal(std::int64_t{std::strtoll(digits.c_str(), nullptr, 10)});
  }

  NodePtr word(int depth) {
    std::size_t const begin = at_;
    while (at_ < text_.size() && word_char(text_[at_])) ++at_;
    std::string_view const name = text_.substr(begin, at_ - begin);
    if (name == "true") return literal(true);
    if (name == "false") return literal(false);
    if (name == "null") return literal(nullptr);
    if (take("(")) return call(name, depth);
    NodePtr node = make(Kind::key, name, {});
    if (take("[")) {
      node = make(Kind::index, name, {node, disjunction(depth + 1)});
      if (!take("]")) mistake("']'");
    }
    return node;
  }

  NodePtr call(std::string_view name, int depth) {
    std::vector<NodePtr> arguments;
    if (!take(")")) {
      do arguments.push_back(disjunction(depth + 1));
      while (take(","));
      if (!take(")")) mistake("',' or ')'");
    }
    return make(Kind::call, name, std::move(arguments));
  }

  std::string_view text_;
  std::string_view place_;
  std::size_t at_ = 0;
};

}  // namespace

std::shared_ptr<Expression::Node const> parse_expression(std::string_view text,
                                                         std::string_view place) {
  constexpr std::size_t longest = 8192;  // a chain of operators is as deep as it is long
  if (text.size() > longest)
    fail(ErrorKind::usage,
         "{}: an expression of {} characters; at most {} are allowed. Define parts of it in "
         "[let].",
         place, text.size(), longest);
  return Parser(text, place).whole();
}

}  // namespace reshard
