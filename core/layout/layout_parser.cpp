#include "core/layout/layout_expr.hpp"

#include <cctype>

#include "core/base/error.hpp"

namespace reshard {
namespace {

// Both bounds keep the recursion over an expression small, whatever text a map or a hostile file
// holds.
constexpr int deepest = 64;
constexpr std::size_t longest = 4096;

bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_number_char(char c) { return c >= '0' && c <= '9'; }

/// Recursive descent over one text, a method per rule of the grammar in
/// docs/formats/layout-expressions.md.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  LayoutExpr stored() {
    LayoutExpr expr;
    expr.text = std::string(text_);
    LayoutExpr::Product root = product(0);
    if (peek() != '\0')
      refuse(fmt::format("'{}' at column {} has nothing to close or separate", peek(), at_ + 1));
    expr.tag = std::move(root.tag);
    expr.dims = std::move(root.factors);
    return expr;
  }

 private:
  [[noreturn]] void refuse(std::string const& why) const {
    fail(
        ErrorKind::usage,
        "'{}': {}. A layout is a sequence of axes, (products | alternatives), 1, fill(n) and *axis.",
        text_, why);
  }

  /// The next character that is not white space, '\0' at the end.
  char peek() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted, std::string_view after) {
    if (take(wanted)) return;
    std::string const found =
        at_ < text_.size() ? fmt::format("'{}'", text_[at_]) : std::string("the end");
    refuse(
        fmt::format("column {} has {} where '{}' must follow {}", at_ + 1, found, wanted, after));
  }

  std::string word(std::string_view what) {
    peek();
    std::size_t const begin = at_;
    while (at_ < text_.size() && is_word_char(text_[at_])) ++at_;
    if (at_ == begin) refuse(fmt::format("{} is missing at column {}", what, begin + 1));
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string name(std::string_view what) {
    if (is_number_char(peek()))
      refuse(fmt::format("the number at column {} is where {} is expected", at_ + 1, what));
    return word(what);
  }

  /// "a.b:" here is a tag; a word without a colon is the first axis, and is not consumed.
  std::string optional_tag() {
    std::size_t const begin = at_;
    if (!is_word_char(peek()) || is_number_char(peek())) return {};
    std::string tag = word("a tag");
    while (take('.')) tag += "." + word("the part of a tag after '.'");
    if (take(':')) return tag;
    if (tag.find('.') != std::string::npos)
      refuse(
          fmt::format("'{}' before column {} looks like a tag, but no ':' follows", tag, at_ + 1));
    at_ = begin;
    return {};
  }

  LayoutExpr::Product product(int depth) {
    LayoutExpr::Product product;
    product.tag = optional_tag();
    for (char next = peek(); next != '\0' && next != '|' && next != ')'; next = peek())
      product.factors.push_back(factor(depth));
    return product;
  }

  LayoutExpr::Factor factor(int depth) {
    LayoutExpr::Factor result;
    char const next = peek();
    if (next == '(') {
      result.kind = LayoutExpr::Factor::Kind::alternatives;
      result.alternatives = alternatives(depth + 1);
    } else if (is_number_char(next)) {
      std::size_t const column = at_ + 1;
      std::string const number = word("a number");
      if (number != "1")
        refuse(
            fmt::format("'{}' at column {}: the only number allowed alone is 1", number, column));
    } else if (next == '*' || is_word_char(next)) {
      axis_or_fill(result);
    } else {
      refuse(fmt::format("column {} has a character that is not allowed in a layout", at_ + 1));
    }
    return result;
  }

  std::vector<LayoutExpr::Product> alternatives(int depth) {
    if (depth > deepest)
      refuse(fmt::format("parentheses are nested deeper than {} levels at column {}", deepest,
                         at_ + 1));
    expect('(', "nothing");
    std::vector<LayoutExpr::Product> all;
    do all.push_back(product(depth));
    while (take('|'));
    expect(')', "an alternative");
    return all;
  }

  void axis_or_fill(LayoutExpr::Factor& result) {
    bool const repeat = take('*');
    peek();
    std::size_t const column = at_ + 1;
    std::string axis = name("an axis");
    if (!repeat && axis == "fill" && take('(')) {
      result.kind = LayoutExpr::Factor::Kind::fill;
      result.count = word("the count of fill");
      expect(')', "the count of fill");
      return;
    }
    if (peek() == ':' || peek() == '.')
      refuse(fmt::format("the tag at column {} must come first in its alternative", column));
    result.kind = LayoutExpr::Factor::Kind::digit;
    result.digit = {std::move(axis), take('%') ? word("the count after '%'") : "",
                    take('/') ? word("the count after '/'") : "", repeat, column};
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

LayoutExpr parse_layout(std::string_view text) {
  if (text.size() > longest)
    fail(
        ErrorKind::usage,
        "a layout expression of {} characters is longer than the limit of {}; it begins '{}'. Split the stored tensor's entry.",
        text.size(), longest, text.substr(0, 40));
  return Parser(text).stored();
}

}  // namespace reshard
