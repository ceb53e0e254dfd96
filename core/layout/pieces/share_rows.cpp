#include <algorithm>

#include "core/base/error.hpp"
#include "core/layout/layout_tree.hpp"
#include "core/layout/pieces/piece.hpp"

namespace reshard {
namespace {

// One index of an outer factor per inner run: only lists of single indices get this long.
constexpr std::size_t most_rows = std::size_t{1} << 20;

using Rows = std::vector<Run>;

void append(Rows& rows, Index begin, Index end) {
  if (!rows.empty() && rows.back().end == begin)
    rows.back().end = end;
  else if (begin < end)
    rows.push_back({begin, end, false});
  if (rows.size() > most_rows)
    fail(ErrorKind::usage,
         "a share falls into more than {} runs of rows. Choose a split with longer runs.",
         most_rows);
}

Rows rows_of(LayoutNode const& whole, LayoutNode const& held);

Rows product_rows(LayoutNode const& whole, LayoutNode const& held, std::size_t factor) {
  if (factor == whole.children.size()) return {{0, 1, false}};
  Index const row = whole.children[factor].inner;
  Rows const outer = rows_of(whole.children[factor], held.children[factor]);
  Rows const inner = product_rows(whole, held, factor + 1);
  Rows rows;
  if (inner == Rows{{0, row, false}}) {
    for (Run const& run : outer) append(rows, run.begin * row, run.end * row);
    return rows;
  }
  if (inner.empty()) return rows;
  for (Run const& run : outer)
    for (Index at = run.begin; at < run.end; ++at)
      for (Run const& part : inner) append(rows, at * row + part.begin, at * row + part.end);
  return rows;
}

Rows digit_rows(LayoutNode const& held) {
  Rows rows;
  for (LayoutNode::Stretch const& stretch : held.stretches)
    if (!stretch.fill) append(rows, stretch.first, stretch.first + stretch.count);
  return rows;
}

// `whole` and `held` are the same expression under no shares and under the shares: a value of a
// digit is its stored index in `whole`.
Rows rows_of(LayoutNode const& whole, LayoutNode const& held) {
  switch (whole.kind) {
    case LayoutNode::Kind::one:
    case LayoutNode::Kind::fill: return {{0, whole.extent, false}};
    case LayoutNode::Kind::digit: return digit_rows(held);
    case LayoutNode::Kind::product: return product_rows(whole, held, 0);
    case LayoutNode::Kind::alternatives: break;
  }
  Rows rows;
  Index origin = 0;
  for (std::size_t i = 0; i < whole.children.size(); ++i) {
    for (Run const& run : rows_of(whole.children[i], held.children[i]))
      append(rows, origin + run.begin, origin + run.end);
    origin += whole.children[i].extent;
  }
  return rows;
}

}  // namespace

std::vector<std::vector<Run>> share_rows(LayoutExpr const& expr, LayoutScope const& scope,
                                         Shares const& shares) {
  LayoutNode const whole = layout_tree(expr, scope, Shares{});
  LayoutNode const held = layout_tree(expr, scope, shares);
  std::vector<std::vector<Run>> rows;
  for (std::size_t d = 0; d < whole.children.size(); ++d)
    rows.push_back(rows_of(whole.children[d], held.children[d]));
  return rows;
}

}  // namespace reshard
