#include "core/layout/pieces/element_place.hpp"

#include <algorithm>
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard {
namespace {

using Factor = ElementTree::Factor;
using Product = ElementTree::Product;
using Kind = LayoutExpr::Factor::Kind;

class TreeMaker {
 public:
  TreeMaker(LayoutExpr const& expr, AxisTable const& axes,
            std::function<std::optional<Index>(std::string_view)> const& size)
      : expr_(expr), axes_(axes), size_(size) {}

  std::vector<Factor> factors(std::vector<LayoutExpr::Factor> const& written) const {
    std::vector<Factor> result;
    for (LayoutExpr::Factor const& one : written) result.push_back(factor(one));
    return result;
  }

 private:
  Factor factor(LayoutExpr::Factor const& written) const {
    Factor result;
    result.kind = written.kind;
    if (written.kind == Kind::fill) result.count = count(written.count);
    if (written.kind == Kind::digit) {
      int const axis = axes_.find(written.digit.axis);
      if (axis < 0)
        fail(ErrorKind::usage, "'{}': the model has no axis '{}'. Correct the map.", expr_.text,
             written.digit.axis);
      result.axis = static_cast<AxisId>(axis);
      if (!written.digit.mod.empty()) result.mod = count(written.digit.mod);
      if (result.mod == axes_[result.axis].size) result.mod = 0;
      if (!written.digit.div.empty()) result.div = count(written.digit.div);
      result.repeat = written.digit.repeat;
    }
    for (LayoutExpr::Product const& product : written.alternatives)
      result.alternatives.push_back({product.tag, factors(product.factors)});
    return result;
  }

  Index count(std::string const& text) const {
    if (text.find_first_not_of("0123456789") == std::string::npos)
      return std::strtoll(text.c_str(), nullptr, 10);
    if (int const axis = axes_.find(text); axis >= 0) return axes_[static_cast<AxisId>(axis)].size;
    if (auto const known = size_(text)) return *known;
    fail(ErrorKind::usage, "'{}': the size '{}' is not known. Correct the map.", expr_.text, text);
  }

  LayoutExpr const& expr_;
  AxisTable const& axes_;
  std::function<std::optional<Index>(std::string_view)> const& size_;
};

/// `rest` without the words of a tag at its front; nullopt if it begins with other words.
std::optional<std::string_view> after_tag(std::string_view rest, std::string_view tag) {
  if (tag.empty()) return rest;
  if (!rest.starts_with(tag)) return std::nullopt;
  rest.remove_prefix(tag.size());
  if (rest.empty()) return rest;
  if (rest.front() != '.') return std::nullopt;
  return rest.substr(1);
}

class Walker {
 public:
  Walker(ElementRule const& rule, AxisTable const& axes) : rule_(rule), axes_(axes) {}

  Index extent(Factor const& factor) const {
    switch (factor.kind) {
      case Kind::one: return 1;
      case Kind::fill: return factor.count;
      case Kind::digit: break;
      case Kind::alternatives: {
        Index sum = 0;
        for (Product const& product : factor.alternatives) sum += extent(product.factors);
        return sum;
      }
    }
    if (factor.mod != 0) return factor.mod / factor.div;
    Index count = 0;
    for (Run const& run : runs(factor.axis)) count += values(run, factor.div);
    return count;
  }

  Index extent(std::vector<Factor> const& factors) const {
    Index product = 1;
    for (Factor const& factor : factors) product *= extent(factor);
    return product;
  }

  /// Takes one stored index apart. False: it is padding.
  bool explain(Factor const& factor, Index index, LogicalElement& element) const {
    if (factor.kind == Kind::fill) return false;
    if (factor.kind == Kind::one) return true;
    if (factor.kind == Kind::alternatives) {
      for (Product const& product : factor.alternatives) {
        Index const size = extent(product.factors);
        if (index < size) return explain(product.tag, product.factors, index, element);
        index -= size;
      }
      broken("an index beyond all alternatives", __FILE__, __LINE__);
    }
    Index const value = factor.mod != 0 ? index : value_at(factor, index);
    if (value < 0) return false;
    if (factor.repeat) return true;
    Index& at = element.at[factor.axis];
    at = std::max<Index>(at, 0) + value * factor.div;
    return true;
  }

  bool explain(std::string const& tag, std::vector<Factor> const& factors, Index index,
               LogicalElement& element) const {
    add_tag(tag, element.tensor);
    Index rest = extent(factors);
    for (Factor const& factor : factors) {
      rest /= extent(factor);
      if (!explain(factor, index / rest, element)) return false;
      index %= rest;
    }
    return true;
  }

  static void add_tag(std::string const& tag, std::string& name) {
    if (!tag.empty()) name += (name.empty() ? "" : ".") + tag;
  }

  /// An index of a factor, and the rest of the tensor's name after the tags on the way.
  struct Found {
    Index index = 0;
    std::string_view name;
  };

  std::vector<Found> find(Factor const& factor, std::string_view name,
                          LogicalElement const& element) const {
    if (factor.kind == Kind::one) return {{0, name}};
    if (factor.kind == Kind::fill) return {};
    if (factor.kind == Kind::digit) {
      Index const index =
          factor.repeat ? first_of(factor) : index_of(factor, coordinate(element, factor.axis));
      return index < 0 ? std::vector<Found>() : std::vector<Found>{{index, name}};
    }
    std::vector<Found> result;
    Index before = 0;
    for (Product const& product : factor.alternatives) {
      for (Found const& one : find(product.tag, product.factors, name, element))
        result.push_back({before + one.index, one.name});
      before += extent(product.factors);
    }
    return result;
  }

  std::vector<Found> find(std::string const& tag, std::vector<Factor> const& factors,
                          std::string_view name, LogicalElement const& element) const {
    auto const rest = after_tag(name, tag);
    if (!rest) return {};
    std::vector<Found> result{{0, *rest}};
    for (Factor const& factor : factors) {
      std::vector<Found> longer;
      Index const size = extent(factor);
      for (Found const& before : result)
        for (Found const& one : find(factor, before.name, element))
          longer.push_back({before.index * size + one.index, one.name});
      result = std::move(longer);
    }
    return result;
  }

  /// The index along an axis; an axis of one index may be left out.
  Index coordinate(LogicalElement const& element, AxisId axis) const {
    Index const at = element.at[axis];
    return at < 0 && axes_[axis].size == 1 ? 0 : at;
  }

 private:
  std::vector<Run> runs(AxisId axis) const {
    for (ElementRule::Held const& held : rule_.held)
      if (held.axis == axis) return held.runs;
    return {{0, axes_[axis].size, false}};
  }

  /// How many values of index / div there are in a run.
  static Index values(Run const& run, Index div) {
    if (run.fill) return (run.end - run.begin) / div;
    return run.end <= run.begin ? 0 : (run.end + div - 1) / div - run.begin / div;
  }

  /// The value of index / div at a stored index; -1: padding.
  Index value_at(Factor const& factor, Index index) const {
    for (Run const& run : runs(factor.axis)) {
      Index const count = values(run, factor.div);
      if (index < count) return run.fill ? -1 : run.begin / factor.div + index;
      index -= count;
    }
    return -1;
  }

  /// The first stored index of a digit that is not padding; -1 if there is none.
  Index first_of(Factor const& factor) const {
    for (Index index = 0; index < extent(factor); ++index)
      if (factor.mod != 0 || value_at(factor, index) >= 0) return index;
    return -1;
  }

  /// The stored index of a digit; -1: the place does not hold it.
  Index index_of(Factor const& factor, Index coordinate) const {
    if (coordinate < 0) return -1;
    if (factor.mod != 0) return coordinate % factor.mod / factor.div;
    Index before = 0;
    for (Run const& run : runs(factor.axis)) {
      if (!run.fill && coordinate >= run.begin && coordinate < run.end)
        return before + coordinate / factor.div - run.begin / factor.div;
      before += values(run, factor.div);
    }
    return -1;
  }

  ElementRule const& rule_;
  AxisTable const& axes_;
};

}  // namespace

ElementTree element_tree(LayoutExpr const& expr, AxisTable const& axes,
                         std::function<std::optional<Index>(std::string_view)> const& size) {
  return {expr.tag, TreeMaker(expr, axes, size).factors(expr.dims)};
}

std::vector<Index> element_shape(ElementRule const& rule, AxisTable const& axes) {
  std::vector<Index> shape;
  for (ElementRule::Front const& front : rule.front) shape.push_back(std::ssize(front.indices));
  for (Factor const& factor : rule.trees.front()->dims)
    shape.push_back(Walker(rule, axes).extent(factor));
  if (rule.rows) shape[rule.front.size() + rule.rows->dim] = rule.rows->count;
  return shape;
}

std::optional<LogicalElement> element_at(ElementRule const& rule, AxisTable const& axes,
                                         std::span<Index const> index) {
  LogicalElement element{rule.trees.front()->tag, std::vector<Index>(axes.size(), -1)};
  std::size_t d = 0;
  for (ElementRule::Front const& front : rule.front)
    element.at[front.axis] = front.indices[static_cast<std::size_t>(index[d++])];
  for (ElementRule::Named const& named : rule.named) {
    Index& at = element.at[named.axis];
    at = std::max<Index>(at, 0) + named.value * named.div;
  }
  Walker const walker(rule, axes);
  for (std::size_t inner = 0; d < index.size(); ++d, ++inner) {
    Index const first = rule.rows && rule.rows->dim == inner ? rule.rows->begin : 0;
    if (!walker.explain(rule.trees.front()->dims[inner], first + index[d], element))
      return std::nullopt;
  }
  return element;
}

std::optional<std::vector<Index>> place_of(ElementRule const& rule, AxisTable const& axes,
                                           LogicalElement const& element) {
  Walker const walker(rule, axes);
  for (ElementRule::Named const& named : rule.named) {
    Index const at = walker.coordinate(element, named.axis);
    if (at < 0 || (named.mod == 0 ? at : at % named.mod) / named.div != named.value)
      return std::nullopt;
  }
  std::vector<Index> index;
  for (ElementRule::Front const& front : rule.front) {
    Index const at = walker.coordinate(element, front.axis);
    auto const found = std::lower_bound(front.indices.begin(), front.indices.end(), at);
    if (found == front.indices.end() || *found != at) return std::nullopt;
    index.push_back(found - front.indices.begin());
  }
  for (auto const& tree : rule.trees) {
    auto const rest = after_tag(element.tensor, tree->tag);
    if (!rest) continue;
    std::vector<std::pair<std::vector<Index>, std::string_view>> partial{{index, *rest}};
    for (std::size_t d = 0; d < tree->dims.size(); ++d) {
      decltype(partial) longer;
      for (auto const& [before, name] : partial)
        for (auto const& one : walker.find(tree->dims[d], name, element)) {
          bool const cut = rule.rows && rule.rows->dim == d;
          Index const first = cut ? rule.rows->begin : 0;
          if (cut && (one.index < first || one.index >= first + rule.rows->count)) continue;
          longer.emplace_back(before, one.name);
          longer.back().first.push_back(one.index - first);
        }
      partial = std::move(longer);
    }
    for (auto& [place, name] : partial)
      if (name.empty()) return std::move(place);
  }
  return std::nullopt;
}

}  // namespace reshard
