#include "core/layout/part_layout.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "core/base/error.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard {
namespace {

using Factor = LayoutExpr::Factor;
using Product = LayoutExpr::Product;

class PartMaker {
 public:
  PartMaker(LayoutExpr const& weight, std::function<Index(std::string const&)> const& size_of)
      : weight_(weight), size_of_(size_of) {}

  std::vector<Factor> made(Factor factor, PartDim const& dim) const {
    switch (dim.kind) {
      case PartDim::Kind::all:
      case PartDim::Kind::one: return tags_alone(factor, dim.kind == PartDim::Kind::one);
      case PartDim::Kind::split:
        if (dim.inner != dim.block) return split(std::move(factor), dim);
        break;
      case PartDim::Kind::words: return {words(std::move(factor), dim)};
      case PartDim::Kind::blocks: break;
    }
    std::vector<Factor> factors = blocks(std::move(factor), dim.block);
    if (dim.kind == PartDim::Kind::split) factors.emplace_back();
    return factors;
  }

  /// Writes named counts of digits as numbers: code that compares the digits of two parts has no
  /// names.
  void write_numbers(std::vector<Factor>& factors) const {
    for (Factor& factor : factors) {
      for (std::string* text : {&factor.digit.mod, &factor.digit.div})
        if (Index const value = count(*text, 0); value > 0) *text = std::to_string(value);
      for (Product& product : factor.alternatives) write_numbers(product.factors);
    }
  }

 private:
  std::vector<Factor> blocks(Factor factor, Index block) const {
    if (block == 1) return {std::move(factor)};
    Product whole{"", {std::move(factor)}};
    divide(whole, block, true);
    if (whole.factors.empty()) return {Factor{}};
    return std::move(whole.factors);
  }

  Factor words(Factor factor, PartDim const& dim) const {
    if (Index const size = extent(factor); size % dim.block != 0)
      fail(ErrorKind::usage,
           "'{}': {} codes are {} words of 32 bits, and {} codes of {} end within them",
           weight_.text, dim.block, dim.inner, size, first_axis(factor));
    Factor whole;
    whole.kind = Factor::Kind::alternatives;
    whole.alternatives.push_back({"", blocks(std::move(factor), dim.block)});
    Factor word;
    word.kind = Factor::Kind::digit;
    word.digit.axis = vector_axis(dim.inner);
    whole.alternatives.front().factors.push_back(std::move(word));
    return whole;
  }

  Index count(std::string const& text, Index otherwise) const {
    if (text.empty()) return otherwise;
    Index value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? value : size_of_(text);
  }

  Index extent(LayoutExpr::Digit const& digit) const {
    Index const whole = count(digit.mod, size_of_(digit.axis));
    Index const div = count(digit.div, 1);
    return div > 0 ? whole / div + (whole % div != 0 ? 1 : 0) : 0;
  }

  Index extent(Product const& product) const {
    Index result = 1;
    for (Factor const& factor : product.factors)
      result = checked_mul(result, extent(factor), ErrorKind::usage, weight_.text);
    return result;
  }

  Index extent(Factor const& factor) const {
    switch (factor.kind) {
      case Factor::Kind::one: return 1;
      case Factor::Kind::digit: return extent(factor.digit);
      case Factor::Kind::fill: return count(factor.count, 0);
      case Factor::Kind::alternatives: break;
    }
    Index sum = 0;
    for (Product const& product : factor.alternatives) sum += extent(product);
    return sum;
  }

  [[noreturn]] void straddles(Index block, std::string const& what, Index size) const {
    fail(
        ErrorKind::usage,
        "'{}': blocks of {} straddle {} (extent {}): the value of a block, such as a scale, is that "
        "of more than one of them, and cannot be cut where the weight is",
        weight_.text, block, what, size);
  }

  static std::string first_axis(Factor const& factor) {
    if (factor.kind == Factor::Kind::digit) return "'" + factor.digit.axis + "'";
    for (Product const& product : factor.alternatives)
      for (std::size_t f = product.factors.size(); f-- > 0;)
        if (std::string axis = first_axis(product.factors[f]); !axis.empty()) return axis;
    return "";
  }

  /// Divides the extent of a product by n. `last`: it is the last of its dimension and not
  /// repeated, so its last block may be short.
  void divide(Product& product, Index n, bool last) const {
    Index left = n;
    for (std::size_t f = product.factors.size(); f-- > 0 && left > 1;) {
      Factor& factor = product.factors[f];
      bool const may_be_short = last && f == 0;
      Index const size = extent(factor);
      bool const parts = factor.kind == Factor::Kind::alternatives;
      if (size % left == 0 || may_be_short || (parts && divisible(factor, left))) {
        divide(factor, left, may_be_short);
        return;
      }
      if (left % size != 0 || several(factor)) straddles(n, first_axis(factor), size);
      left /= size;
      // Each block contains the complete factor; only the name of the tensor remains.
      std::vector<Factor> name = tags_alone(factor, false);
      auto const at =
          product.factors.erase(product.factors.begin() + static_cast<std::ptrdiff_t>(f));
      product.factors.insert(at, std::make_move_iterator(name.begin()),
                             std::make_move_iterator(name.end()));
    }
    if (left > 1 && !last)
      straddles(n, product.tag.empty() ? "a part" : "'" + product.tag + "'", n / left);
  }

  /// Whether the factor holds more than one alternative, at any depth.
  static bool several(Factor const& factor) {
    if (factor.alternatives.size() > 1) return true;
    for (Product const& product : factor.alternatives)
      if (std::any_of(product.factors.begin(), product.factors.end(), several)) return true;
    return false;
  }

  bool divisible(Factor const& factor, Index n) const {
    for (Product const& product : factor.alternatives)
      if (extent(product) % n != 0) return false;
    return true;
  }

  void divide(Factor& factor, Index n, bool last) const {
    switch (factor.kind) {
      case Factor::Kind::one: return;
      case Factor::Kind::digit:
        factor.digit.div = std::to_string(
            checked_mul(count(factor.digit.div, 1), n, ErrorKind::usage, weight_.text));
        return;
      case Factor::Kind::fill: {
        Index const size = count(factor.count, 0);
        if (size % n != 0 && !last) straddles(n, "padding", size);
        factor.count = std::to_string((size + n - 1) / n);
        return;
      }
      case Factor::Kind::alternatives: break;
    }
    for (Product& product : factor.alternatives) {
      bool const behind_all = last && &product == &factor.alternatives.back();
      Index const size = extent(product);
      if (size % n != 0 && !behind_all) straddles(n, named(product), size);
      divide(product, n, behind_all);
    }
  }

  static std::string named(Product const& product) {
    if (!product.factors.empty())
      if (std::string axis = first_axis(product.factors.back()); !axis.empty()) return axis;
    return "'" + product.tag + "'";
  }

  /// The last digit of a dimension as blocks, and the elements of a block as a further dimension.
  std::vector<Factor> split(Factor factor, PartDim const& dim) const {
    Factor* leaf = &factor;
    while (leaf->kind == Factor::Kind::alternatives && leaf->alternatives.size() == 1 &&
           !leaf->alternatives.front().factors.empty())
      leaf = &leaf->alternatives.front().factors.back();
    if (leaf->kind != Factor::Kind::digit || !leaf->digit.mod.empty() || !leaf->digit.div.empty() ||
        extent(leaf->digit) % dim.block != 0)
      straddles(
          dim.block,
          leaf->kind == Factor::Kind::digit ? "'" + leaf->digit.axis + "'" : "several tensors",
          extent(*leaf));
    Factor inner = *leaf;
    leaf->digit.div = std::to_string(dim.block);
    inner.digit.mod = std::to_string(dim.block);
    inner.digit.div = std::to_string(dim.inner);
    return {std::move(factor), std::move(inner)};
  }

  static std::vector<std::string> tags(Factor const& factor) {
    std::vector<std::string> result;
    for (Product const& product : factor.alternatives) {
      std::vector<std::string> inner{""};
      for (Factor const& child : product.factors)
        if (auto more = tags(child); !more.empty()) inner = std::move(more);
      for (std::string const& name : inner) {
        std::string const path =
            product.tag.empty() || name.empty() ? product.tag + name : product.tag + "." + name;
        if (!path.empty()) result.push_back(path);
      }
    }
    return result;
  }

  static std::vector<Factor> tags_alone(Factor const& factor, bool keep_dimension) {
    Factor alone;
    for (std::string const& name : tags(factor)) alone.alternatives.push_back({name, {}});
    if (!alone.alternatives.empty())
      alone.kind = Factor::Kind::alternatives;
    else if (!keep_dimension)
      return {};
    return {std::move(alone)};
  }

  LayoutExpr const& weight_;
  std::function<Index(std::string const&)> const& size_of_;
};

bool has_tag(Product const& product);

bool has_tag(std::vector<Factor> const& factors) {
  for (Factor const& factor : factors)
    for (Product const& product : factor.alternatives)
      if (has_tag(product)) return true;
  return false;
}

bool has_tag(Product const& product) { return !product.tag.empty() || has_tag(product.factors); }

bool has_tag(Factor const& factor) {
  return std::ranges::any_of(factor.alternatives,
                             [](Product const& product) { return has_tag(product); });
}

/// Puts the suffix behind the innermost tags.
void add_suffix(std::vector<Factor>& factors, std::string const& suffix) {
  for (Factor& factor : factors)
    for (Product& product : factor.alternatives) {
      if (has_tag(product.factors))
        add_suffix(product.factors, suffix);
      else if (!product.tag.empty())
        product.tag += suffix;
    }
}

}  // namespace

LayoutExpr part_layout(LayoutExpr const& weight, std::span<PartDim const> dims,
                       std::string_view vector, std::string_view suffix,
                       std::function<Index(std::string const&)> const& size_of) {
  if (weight.dims.size() < dims.size())
    fail(ErrorKind::usage,
         "'{}': has {} dimensions, and the form of its quantised values counts the last {} of them",
         weight.text, weight.dims.size(), dims.size());
  LayoutExpr result;
  result.text = weight.text;
  result.tag = weight.tag;
  PartMaker const maker(weight, size_of);
  std::size_t const before = weight.dims.size() - dims.size();
  for (std::size_t d = 0; d < weight.dims.size(); ++d) {
    if (d < before) {
      result.dims.push_back(weight.dims[d]);
      continue;
    }
    for (Factor& factor : maker.made(weight.dims[d], dims[d - before]))
      result.dims.push_back(std::move(factor));
  }
  maker.write_numbers(result.dims);
  if (has_tag(result.dims))
    add_suffix(result.dims, std::string(suffix));
  else
    result.tag += suffix;
  if (vector.empty()) return result;
  Factor count;
  count.kind = Factor::Kind::digit;
  count.digit.axis = vector;
  result.dims.push_back(std::move(count));
  return result;
}

std::string vector_axis(Index count) {
  return count > 0 ? "numbers" + std::to_string(count) : std::string();
}

std::vector<LayoutExpr> shared_part_layouts(
    LayoutExpr const& weight, std::span<PartDim const> dims, std::string_view vector,
    std::string_view suffix, std::function<Index(std::string const&)> const& size_of) {
  LayoutExpr const whole = part_layout(weight, dims, vector, suffix, size_of);
  std::size_t const before = weight.dims.size() - dims.size();
  LayoutExpr one{weight.text, weight.tag, {}};
  bool named = false;
  for (std::size_t d = 0; d < weight.dims.size(); ++d) {
    one.dims.push_back(weight.dims[d]);
    if (!has_tag(one.dims.back())) continue;
    bool const goes = d >= before && (dims[d - before].kind == PartDim::Kind::all ||
                                      dims[d - before].kind == PartDim::Kind::one);
    if (!goes) return {whole};
    named = true;
    one.dims.back() = Factor{};
  }
  if (!named) return {whole};
  std::vector<LayoutExpr> result;
  for (std::string const& tensor : weight.tensors()) {
    one.tag = tensor;
    result.push_back(part_layout(one, dims, vector, suffix, size_of));
  }
  return result;
}

}  // namespace reshard
