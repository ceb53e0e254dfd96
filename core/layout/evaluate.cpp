#include <algorithm>

#include "core/base/error.hpp"
#include "core/layout/layout_parts.hpp"
#include "core/layout/layout_tree.hpp"
#include "core/layout/pieces/piece.hpp"

namespace reshard {
namespace {

/// Turns parts into pieces and fills: resolves names, separates digits from repeats.
class Emitter {
 public:
  Emitter(LayoutExpr const& expr, LayoutScope const& scope) : expr_(expr), scope_(scope) {
    RESHARD_EXPECT(scope.tensor != nullptr);
  }

  void emit(Layout& layout, LayoutPart const& part) {
    std::vector<PieceDigit> digits;
    std::vector<PieceCopy> others;
    for (LayoutPart::Dim const& dim : part.dims) {
      if (dim.indexed && !part.fill)
        digits.push_back(dim.digit);
      else if (dim.digit.count != 1)
        others.push_back({dim.digit.count, dim.digit.stride});
    }
    if (part.fill) {
      layout.fills.push_back({part.offset, std::move(others)});
      return;
    }
    check_distinct(part, digits);
    layout.pieces.push_back({tensor(part.name), std::move(digits), std::move(others), part.offset});
  }

 private:
  struct Resolved {
    std::string name;
    TensorId id{};
  };

  TensorId tensor(std::string const& name) {
    for (Resolved const& known : resolved_)
      if (known.name == name) return known.id;
    std::optional<TensorId> const id = scope_.tensor(name);
    if (!id)
      fail(ErrorKind::usage,
           "'{}': it holds '{}', which is not a tensor of this model. Correct the tags, or name "
           "the tensor in the model's map.",
           expr_.text, name);
    resolved_.push_back({name, *id});
    return *id;
  }

  void check_distinct(LayoutPart const& part, std::vector<PieceDigit> const& digits) const {
    for (std::size_t i = 0; i < digits.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        PieceDigit const& a = digits[i];
        PieceDigit const& b = digits[j];
        if (a.axis == b.axis && std::max(a.div, b.div) < std::min(a.mod, b.mod))
          fail(ErrorKind::usage,
               "'{}': axis '{}' appears twice in '{}'. Use each part of an axis once, or another "
               "axis of the same size.",
               expr_.text, (*scope_.axes)[a.axis].name, part.name);
      }
  }

  LayoutExpr const& expr_;
  LayoutScope const& scope_;
  std::vector<Resolved> resolved_;
};

std::vector<Index> row_major(std::vector<Index> const& shape) {
  std::vector<Index> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Strides come from files: the farthest element of the view must have an offset that fits. Sums
// below zero also hold the least stride.
void check_strides(LayoutExpr const& expr, std::vector<Index> const& shape,
                   std::span<Index const> strides) {
  Index farthest = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    Index const reach = checked_mul(shape[d], strides[d], ErrorKind::source, expr.text);
    farthest = checked_add(farthest, reach < 0 ? reach : -reach, ErrorKind::source, expr.text);
  }
}

Layout emitted(LayoutExpr const& expr, LayoutScope const& scope, std::vector<Index> shape,
               std::vector<LayoutPart> all) {
  Layout layout;
  layout.shape = std::move(shape);
  Emitter emitter(expr, scope);
  for (LayoutPart const& part : all) emitter.emit(layout, part);
  return layout;
}

Layout box_of(LayoutExpr const& expr, LayoutScope const& scope, LayoutNode const& tree,
              std::span<Index const> begin, std::span<Index const> end,
              std::span<Index const> strides) {
  std::vector<Index> shape(tree.children.size());
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (begin[d] < 0 || end[d] < begin[d] || end[d] > tree.children[d].extent)
      fail(
          ErrorKind::source,
          "'{}': a box takes [{}, {}) of dimension {}, which has {} elements. The checkpoint's metadata disagrees with the model.",
          expr.text, begin[d], end[d], d, tree.children[d].extent);
    shape[d] = end[d] - begin[d];
  }
  RESHARD_EXPECT(strides.empty() || strides.size() == shape.size());
  std::vector<Index> const own =
      strides.empty() ? row_major(shape) : std::vector<Index>(strides.begin(), strides.end());
  check_strides(expr, shape, own);
  std::vector<LayoutPart> all{LayoutPart{}};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<LayoutPart> dimension = parts(tree.children[d], begin[d], end[d]);
    for (LayoutPart& part : dimension) part.offset -= begin[d];
    scale(dimension, own[d]);
    all = cross(all, dimension);
  }
  prefix(all, tree.tag);
  return emitted(expr, scope, std::move(shape), std::move(all));
}

}  // namespace

Layout evaluate(LayoutExpr const& expr, LayoutScope const& scope, Shares const& shares,
                std::span<Index const> strides) {
  LayoutNode const tree = layout_tree(expr, scope, shares);
  std::vector<Index> const begin(tree.children.size(), 0);
  std::vector<Index> end;
  for (LayoutNode const& child : tree.children) end.push_back(child.extent);
  return box_of(expr, scope, tree, begin, end, strides);
}

Layout evaluate_box(LayoutExpr const& expr, LayoutScope const& scope, Shares const& shares,
                    std::span<Index const> begin, std::span<Index const> end,
                    std::span<Index const> strides) {
  LayoutNode const tree = layout_tree(expr, scope, shares);
  if (begin.size() != tree.children.size() || end.size() != tree.children.size())
    fail(ErrorKind::source, "'{}': a box of {} dimensions does not fit a stored tensor of {}.",
         expr.text, begin.size(), tree.children.size());
  return box_of(expr, scope, tree, begin, end, strides);
}

Layout evaluate_flat(LayoutExpr const& expr, LayoutScope const& scope, Shares const& shares,
                     Index begin, Index end) {
  LayoutNode const tree = layout_tree(expr, scope, shares);
  if (begin < 0 || end < begin || end > tree.extent)
    fail(ErrorKind::source,
         "'{}': the flat range [{}, {}) is outside its {} elements. The checkpoint's metadata "
         "disagrees with the model.",
         expr.text, begin, end, tree.extent);
  std::vector<LayoutPart> all = parts(tree, begin, end);
  for (LayoutPart& part : all) part.offset -= begin;
  return emitted(expr, scope, {end - begin}, std::move(all));
}

}  // namespace reshard
