#include "core/layout/adapter_layout.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace reshard {
namespace {

using Factor = LayoutExpr::Factor;
using Product = LayoutExpr::Product;

Factor digit(std::string axis, std::string mod = "", std::string div = "") {
  Factor factor;
  factor.kind = Factor::Kind::digit;
  factor.digit.axis = std::move(axis);
  factor.digit.mod = std::move(mod);
  factor.digit.div = std::move(div);
  return factor;
}

Factor product_of(std::vector<Factor> factors) {
  Factor factor;
  factor.kind = Factor::Kind::alternatives;
  factor.alternatives.push_back({"", std::move(factors)});
  return factor;
}

void collect(Factor const& factor, std::vector<std::string>& axes) {
  if (factor.kind == Factor::Kind::digit) {
    if (std::ranges::find(axes, factor.digit.axis) == axes.end()) axes.push_back(factor.digit.axis);
    return;
  }
  for (Product const& product : factor.alternatives)
    for (Factor const& inner : product.factors) collect(inner, axes);
}

bool has_tag(Factor const& factor) {
  return std::ranges::any_of(factor.alternatives, [](Product const& product) {
    return !product.tag.empty() || std::ranges::any_of(product.factors, has_tag);
  });
}

/// Puts the suffix behind the innermost tags.
void add_suffix(Factor& factor, std::string const& suffix) {
  for (Product& product : factor.alternatives) {
    if (std::ranges::any_of(product.factors, has_tag))
      for (Factor& inner : product.factors) add_suffix(inner, suffix);
    else if (!product.tag.empty())
      product.tag += suffix;
  }
}

std::string joined(std::string const& outer, std::string const& inner) {
  return outer.empty() || inner.empty() ? outer + inner : outer + "." + inner;
}

/// Whether the tags below `outer` lead to the tensor; others go.
bool prune(std::vector<Factor>& factors, std::string const& outer, std::string_view tensor);

bool prune(Product& product, std::string const& outer, std::string_view tensor) {
  std::string const name = joined(outer, product.tag);
  if (std::ranges::any_of(product.factors, has_tag)) return prune(product.factors, name, tensor);
  return product.tag.empty() || name == tensor;
}

bool prune(std::vector<Factor>& factors, std::string const& outer, std::string_view tensor) {
  for (Factor& factor : factors) {
    if (!has_tag(factor)) continue;
    std::erase_if(factor.alternatives,
                  [&](Product& product) { return !prune(product, outer, tensor); });
    if (factor.alternatives.empty()) return false;
  }
  return true;
}

std::vector<Factor> matrix_dims(Factor dim, AdapterShape const& shape) {
  std::vector<Factor> ranks{digit(shape.rank)};
  std::vector<Factor> inside;
  for (std::string const& axis : shape.inside) inside.push_back(digit(axis));
  bool const first = shape.matrix == AdapterMatrix::a;
  ranks.insert(first ? ranks.begin() : ranks.end(), inside.begin(), inside.end());
  Factor rank = ranks.size() == 1 ? std::move(ranks.front()) : product_of(std::move(ranks));
  std::vector<Factor> dims;
  for (std::string const& axis : shape.front) dims.push_back(digit(axis));
  dims.push_back(first ? rank : dim);
  dims.push_back(first ? std::move(dim) : std::move(rank));
  return dims;
}

}  // namespace

std::vector<std::string> axes_in(Factor const& dim) {
  std::vector<std::string> axes;
  collect(dim, axes);
  return axes;
}

std::vector<LayoutExpr> adapter_layouts(LayoutExpr const& weight, LinearDims dims,
                                        AdapterShape const& shape) {
  Factor const& dim = weight.dims[shape.matrix == AdapterMatrix::a ? dims.in : dims.out];
  Factor const& other = weight.dims[shape.matrix == AdapterMatrix::a ? dims.out : dims.in];
  std::vector<LayoutExpr> result;
  if (has_tag(dim) || !has_tag(other)) {
    Factor own = dim;
    LayoutExpr expr{weight.text, weight.tag, {}};
    if (has_tag(own))
      add_suffix(own, shape.suffix);
    else
      expr.tag += shape.suffix;
    expr.dims = matrix_dims(std::move(own), shape);
    result.push_back(std::move(expr));
    return result;
  }
  for (std::string const& tensor : weight.tensors())
    result.push_back({weight.text, tensor + shape.suffix, matrix_dims(dim, shape)});
  return result;
}

LayoutExpr only_tensor(LayoutExpr expr, std::string_view tensor) {
  RESHARD_EXPECT(prune(expr.dims, expr.tag, tensor));
  return expr;
}

bool put_ranks_outside(Factor& dim, std::string_view axis, long long size, long long ranks) {
  if (dim.kind != Factor::Kind::alternatives || dim.alternatives.size() < 2) return false;
  for (Product const& product : dim.alternatives) {
    if (product.factors.empty()) return false;
    Factor const& first = product.factors.front();
    if (first.kind != Factor::Kind::digit || first.digit.axis != axis || !first.digit.mod.empty() ||
        !first.digit.div.empty())
      return false;
  }
  std::string const part = std::to_string(size / ranks);
  for (Product& product : dim.alternatives) product.factors.front().digit.mod = part;
  Factor outer = digit(std::string(axis), "", part);
  dim = product_of({std::move(outer), std::move(dim)});
  return true;
}

bool put_halves_outside(Factor& dim, std::string_view axis, long long size, long long ranks) {
  std::string const share = std::to_string(size / ranks);
  std::string const half = std::to_string(size / ranks / 2);
  auto const split = [&] {
    return std::vector<Factor>{digit(std::string(axis), share, half),
                               digit(std::string(axis), "", share), digit(std::string(axis), half)};
  };
  auto const is_axis = [&](Factor const& factor) {
    return factor.kind == Factor::Kind::digit && factor.digit.axis == axis &&
           factor.digit.mod.empty() && factor.digit.div.empty();
  };
  if (is_axis(dim)) {
    dim = product_of(split());
    return true;
  }
  if (dim.alternatives.size() != 1 || dim.alternatives.front().factors.size() != 1 ||
      !is_axis(dim.alternatives.front().factors.front()))
    return false;
  dim.alternatives.front().factors = split();
  return true;
}

}  // namespace reshard
