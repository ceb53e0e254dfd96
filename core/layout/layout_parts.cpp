#include "core/layout/layout_parts.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace reshard {
namespace {

using Parts = std::vector<LayoutPart>;

// Crossed alternatives and long lists of runs multiply; beyond this an expression is a mistake, not
// a checkpoint.
constexpr std::size_t most_parts = std::size_t{1} << 16;

void append(Parts& to, Parts&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

std::string joined(std::string_view outer, std::string_view inner) {
  std::string name(outer);
  if (!outer.empty() && !inner.empty()) name += '.';
  return name.append(inner);
}

Parts digit_parts(LayoutNode const& node, Index begin, Index end) {
  Parts all;
  for (LayoutNode::Stretch const& stretch : node.stretches) {
    Index const from = std::max(begin, stretch.position);
    Index const to = std::min(end, stretch.position + stretch.count);
    if (from >= to) continue;
    bool const indexed = !stretch.fill && !node.repeat;
    bool const repeats_on = node.repeat && !stretch.fill && !all.empty() && !all.back().fill;
    if (repeats_on) {  // whatever its value, every index of a repeated digit shows the same element
      all.back().dims[0].digit.count += to - from;
      continue;
    }
    PieceDigit const digit{node.axis, node.mod, node.div, stretch.first + from - stretch.position,
                           to - from, 1};
    all.push_back({"", {{digit, indexed}}, from, stretch.fill});
  }
  return all;
}

Parts fill_parts(Index begin, Index end) {
  if (begin >= end) return {};
  return {{"", {{{0, 1, 1, 0, end - begin, 1}, false}}, begin, true}};
}

Parts alternative_parts(LayoutNode const& node, Index begin, Index end) {
  Parts all;
  Index origin = 0;
  for (LayoutNode const& child : node.children) {
    Index const from = std::max(begin - origin, Index{0});
    Index const to = std::min(end - origin, child.extent);
    if (from < to) {
      Parts some = parts(child, from, to);
      for (LayoutPart& part : some) part.offset += origin;
      append(all, std::move(some));
    }
    origin += child.extent;
  }
  return all;
}

/// [begin, end) of the row-major product of node.children[factor…]: the tail of one row, complete
/// rows, the head of one row.
Parts product_parts(LayoutNode const& node, std::size_t factor, Index begin, Index end) {
  if (begin >= end) return {};
  if (factor == node.children.size()) return {LayoutPart{}};
  LayoutNode const& child = node.children[factor];
  if (factor + 1 == node.children.size()) return parts(child, begin, end);
  Index const row = child.inner;
  auto const rows = [&](Index first_row, Index last_row, Index from, Index to) {
    Parts outer = parts(child, first_row, last_row);
    scale(outer, row);
    return cross(outer, product_parts(node, factor + 1, from, to));
  };
  Index const whole_begin = begin / row + (begin % row != 0 ? 1 : 0);
  Index const whole_end = end / row;
  if (whole_begin > whole_end)
    return rows(whole_end, whole_end + 1, begin - whole_end * row, end - whole_end * row);
  Parts all;
  if (begin < whole_begin * row)
    append(all, rows(whole_begin - 1, whole_begin, begin - (whole_begin - 1) * row, row));
  if (whole_begin < whole_end) append(all, rows(whole_begin, whole_end, 0, row));
  if (whole_end * row < end) append(all, rows(whole_end, whole_end + 1, 0, end - whole_end * row));
  return all;
}

}  // namespace

std::vector<LayoutPart> parts(LayoutNode const& node, Index begin, Index end) {
  switch (node.kind) {
    case LayoutNode::Kind::one: return begin < end ? Parts{LayoutPart{}} : Parts{};
    case LayoutNode::Kind::digit: return digit_parts(node, begin, end);
    case LayoutNode::Kind::fill: return fill_parts(begin, end);
    case LayoutNode::Kind::alternatives: return alternative_parts(node, begin, end);
    case LayoutNode::Kind::product: break;
  }
  Parts all = product_parts(node, 0, begin, end);
  prefix(all, node.tag);
  return all;
}

void scale(std::vector<LayoutPart>& all, Index by) {
  for (LayoutPart& part : all) {
    part.offset *= by;
    for (LayoutPart::Dim& dim : part.dims) dim.digit.stride *= by;
  }
}

std::vector<LayoutPart> cross(std::vector<LayoutPart> const& outer,
                              std::vector<LayoutPart> const& inner) {
  if (!inner.empty() && outer.size() > most_parts / inner.size())
    fail(ErrorKind::usage,
         "a layout falls into more than {} pieces ({} x {}). Store its parts under separate "
         "names.",
         most_parts, outer.size(), inner.size());
  Parts all;
  all.reserve(outer.size() * inner.size());
  for (LayoutPart const& left : outer)
    for (LayoutPart const& right : inner) {
      LayoutPart part{joined(left.name, right.name), left.dims, left.offset + right.offset,
                      left.fill || right.fill};
      part.dims.insert(part.dims.end(), right.dims.begin(), right.dims.end());
      all.push_back(std::move(part));
    }
  return all;
}

void prefix(std::vector<LayoutPart>& all, std::string_view tag) {
  if (tag.empty()) return;
  for (LayoutPart& part : all) part.name = joined(tag, part.name);
}

}  // namespace reshard
