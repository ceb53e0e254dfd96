#include "core/layout/layout_tree.hpp"

#include <algorithm>
#include <charconv>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

using Factor = LayoutExpr::Factor;
using Stretch = LayoutNode::Stretch;

Index rounded_up_quotient(Index value, Index by) { return value / by + (value % by != 0 ? 1 : 0); }

class TreeBuilder {
 public:
  TreeBuilder(LayoutExpr const& expr, LayoutScope const& scope, Shares const& shares)
      : expr_(expr), scope_(scope), shares_(shares) {
    RESHARD_EXPECT(scope.axes != nullptr);
  }

  LayoutNode product(std::string_view tag, std::vector<Factor> const& factors) const {
    LayoutNode node;
    node.kind = LayoutNode::Kind::product;
    node.tag = tag;
    node.children.reserve(factors.size());
    for (Factor const& factor : factors) node.children.push_back(child(factor));
    for (auto it = node.children.rbegin(); it != node.children.rend(); ++it) {
      it->inner = node.extent;
      node.extent = checked_mul(node.extent, it->extent, ErrorKind::usage, expr_.text);
    }
    return node;
  }

 private:
  LayoutNode child(Factor const& factor) const {
    LayoutNode node;
    switch (factor.kind) {
      case Factor::Kind::one: break;
      case Factor::Kind::digit: return digit(factor.digit);
      case Factor::Kind::fill:
        node.kind = LayoutNode::Kind::fill;
        node.extent = count(factor.count, "the count of fill");
        break;
      case Factor::Kind::alternatives:
        node.kind = LayoutNode::Kind::alternatives;
        node.extent = 0;
        for (LayoutExpr::Product const& alternative : factor.alternatives) {
          node.children.push_back(product(alternative.tag, alternative.factors));
          node.extent =
              checked_add(node.extent, node.children.back().extent, ErrorKind::usage, expr_.text);
        }
        break;
    }
    return node;
  }

  LayoutNode digit(LayoutExpr::Digit const& digit) const {
    LayoutNode node;
    node.kind = LayoutNode::Kind::digit;
    node.axis = axis(digit);
    node.repeat = digit.repeat;
    Index const size = (*scope_.axes)[node.axis].size;
    node.div = digit.div.empty() ? 1 : count(digit.div, written(digit));
    if (node.div < 1)
      fail(ErrorKind::usage, "'{}': {} divides by {}. A count must be at least 1.", expr_.text,
           written(digit), node.div);
    Index const mod = digit.mod.empty() ? size : count(digit.mod, written(digit));
    if (digit.mod.empty() || mod == size) {
      node.mod = checked_mul(std::max(Index{1}, rounded_up_quotient(size, node.div)), node.div,
                             ErrorKind::usage, expr_.text);
      node.stretches = stretches(digit, node.axis, node.div);
      node.extent =
          node.stretches.empty() ? 0 : node.stretches.back().position + node.stretches.back().count;
    } else {
      node.mod = mod;
      check_whole_blocks(digit, node);
      node.extent = mod / node.div;
      node.stretches = {{0, node.extent, 0, false}};
    }
    return node;
  }

  AxisId axis(LayoutExpr::Digit const& digit) const {
    int const found = scope_.axes->find(digit.axis);
    if (found >= 0) return static_cast<AxisId>(found);
    std::vector<std::string> names = scope_.axes->names();
    std::ranges::sort(names);
    std::string const near = nearest(digit.axis, names);
    fail(ErrorKind::usage, "'{}': '{}' at column {} is not an axis.{} This model's axes: {}",
         expr_.text, digit.axis, digit.column,
         near.empty() ? "" : fmt::format(" Did you mean '{}'?", near), listed(names));
  }

  Index count(std::string const& text, std::string const& where) const {
    Index value = 0;
    char const* const end = text.data() + text.size();
    auto const [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end) return value;
    std::optional<Index> const named = scope_.size ? scope_.size(text) : std::nullopt;
    if (!named)
      fail(ErrorKind::usage, "'{}': {}: '{}' is neither a number nor the name of a size. Give one.",
           expr_.text, where, text);
    if (*named < 0)
      fail(ErrorKind::usage, "'{}': {}: '{}' is {}, below zero.", expr_.text, where, text, *named);
    return *named;
  }

  static std::string written(LayoutExpr::Digit const& digit) {
    return fmt::format("'{}{}{}' at column {}", digit.axis,
                       digit.mod.empty() ? "" : "%" + digit.mod,
                       digit.div.empty() ? "" : "/" + digit.div, digit.column);
  }

  /// The runs of a share, cut into blocks of `div`; neighbours that continue each other become one.
  std::vector<Stretch> stretches(LayoutExpr::Digit const& digit, AxisId id, Index div) const {
    std::vector<Stretch> result;
    Index position = 0;
    for (Run const& run : runs(id)) {
      check_cut(digit, id, run, div);
      Index const first = run.fill ? 0 : run.begin / div;
      Index const blocks =
          run.fill ? (run.end - run.begin) / div : rounded_up_quotient(run.end, div) - first;
      if (blocks == 0) continue;
      Stretch const next{position, blocks, first, run.fill};
      position = checked_add(position, blocks, ErrorKind::usage, expr_.text);
      if (!result.empty() && continues(result.back(), next))
        result.back().count += blocks;
      else
        result.push_back(next);
    }
    return result;
  }

  static bool continues(Stretch const& left, Stretch const& right) {
    return left.fill == right.fill && (left.fill || left.first + left.count == right.first);
  }

  Share runs(AxisId id) const {
    Axis const& axis = (*scope_.axes)[id];
    Share const* const share = shares_.find(id);
    if (share == nullptr) return {{0, axis.size, false}};
    for (Run const& run : *share)
      if (run.begin < 0 || run.end < run.begin || (!run.fill && run.end > axis.size))
        fail(ErrorKind::usage,
             "'{}': the share [{}, {}) of axis '{}' is outside its {} indices. Choose a split that "
             "fits this model.",
             expr_.text, run.begin, run.end, axis.name, axis.size);
    return *share;
  }

  void check_cut(LayoutExpr::Digit const& digit, AxisId id, Run const& run, Index div) const {
    Index const size = (*scope_.axes)[id].size;
    if (run.fill) {
      if ((run.end - run.begin) % div != 0)
        fail(
            ErrorKind::usage,
            "'{}': {} elements of padding along axis '{}' are not whole blocks of {} ({}). Pad to a multiple of {}.",
            expr_.text, run.end - run.begin, digit.axis, div, written(digit), div);
      return;
    }
    bool const cut_in_front = run.begin % div != 0;
    if (run.begin != run.end && (cut_in_front || (run.end % div != 0 && run.end != size)))
      fail(
          ErrorKind::usage,
          "'{}': a cut of axis '{}' at {} falls inside a block of {} ({}). Choose a split of its {} indices at multiples of {}.",
          expr_.text, digit.axis, cut_in_front ? run.begin : run.end, div, written(digit), size,
          div);
  }

  /// a%m/b has the same m/b values in every block of m, so a share can only contain complete
  /// blocks.
  void check_whole_blocks(LayoutExpr::Digit const& digit, LayoutNode const& node) const {
    if (node.mod < 1 || node.mod % node.div != 0)
      fail(ErrorKind::usage,
           "'{}': {}: {} is not a multiple of {}. Choose counts that divide each other.",
           expr_.text, written(digit), node.mod, node.div);
    for (Run const& run : runs(node.axis))
      if ((run.fill ? 0 : run.begin) % node.mod != 0 ||
          (run.fill ? run.end - run.begin : run.end) % node.mod != 0)
        fail(
            ErrorKind::usage,
            "'{}': {} needs whole blocks of {}, but axis '{}' (size {}) is held as [{}, {}) here. Choose a split at multiples of {}.",
            expr_.text, written(digit), node.mod, digit.axis, (*scope_.axes)[node.axis].size,
            run.begin, run.end, node.mod);
  }

  LayoutExpr const& expr_;
  LayoutScope const& scope_;
  Shares const& shares_;
};

}  // namespace

LayoutNode layout_tree(LayoutExpr const& expr, LayoutScope const& scope, Shares const& shares) {
  return TreeBuilder(expr, scope, shares).product(expr.tag, expr.dims);
}

}  // namespace reshard
