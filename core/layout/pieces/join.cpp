#include "core/layout/pieces/join.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/layout/pieces/digit_boxes.hpp"

namespace reshard {
namespace {

/// The sorted boxes of one side as a tree: level k groups boxes that agree on digits 0…k. A node's
/// children are a run of the next level; those of the last level are a run of `order`. The last
/// node of every level is an end mark.
struct Trie {
  struct Node {
    Index begin = 0;
    Index end = 0;
    std::uint32_t children = 0;
  };

  explicit Trie(DigitBoxes const& all) : boxes(&all), order(all.sorted()), levels(all.width()) {
    std::size_t const depth = levels.size();
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::size_t level = i == 0 ? 0 : first_difference(all.row(order[i - 1]), all.row(order[i]));
      for (; level < depth; ++level) {
        BoxDigit const& digit = all.row(order[i])[level];
        levels[level].push_back({digit.first, digit.first + digit.count, child_count(level, i)});
      }
    }
    for (std::size_t level = 0; level < depth; ++level)
      levels[level].push_back({0, 0, child_count(level, order.size())});
  }

  std::uint32_t roots() const {
    return narrow<std::uint32_t>(levels.empty() ? order.size() : levels[0].size() - 1);
  }

  DigitBoxes const* boxes;
  std::vector<std::uint32_t> order;
  std::vector<std::vector<Node>> levels;

 private:
  std::size_t first_difference(BoxDigit const* a, BoxDigit const* b) const {
    std::size_t level = 0;
    while (level < levels.size() && a[level].first == b[level].first &&
           a[level].count == b[level].count)
      ++level;
    return level;
  }

  // End marks are pushed from the first level down, so the next level has no mark yet when its size
  // is taken.
  std::uint32_t child_count(std::size_t level, std::size_t box) const {
    return narrow<std::uint32_t>(level + 1 < levels.size() ? levels[level + 1].size() : box);
  }
};

struct Siblings {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

class Joiner {
 public:
  Joiner(Trie const& src, Trie const& dst, std::span<Piece const> targets, Join& result)
      : src_(src), dst_(dst), targets_(targets), result_(result), path_(result.digits.size()) {}

  /// All overlaps between two runs of siblings of one level. Both are sorted by `begin`, so target
  /// nodes that end before a source node begins are skipped for good once no longer node precedes
  /// them.
  void visit(std::size_t level, Siblings src, Siblings dst) {
    if (level == path_.size()) {
      for (std::uint32_t s = src.begin; s < src.end; ++s)
        for (std::uint32_t d = dst.begin; d < dst.end; ++d) emit(src_.order[s], dst_.order[d]);
      return;
    }
    std::vector<Trie::Node> const& left = src_.levels[level];
    std::vector<Trie::Node> const& right = dst_.levels[level];
    for (std::uint32_t s = src.begin; s < src.end; ++s) {
      while (dst.begin < dst.end && right[dst.begin].end <= left[s].begin) ++dst.begin;
      for (std::uint32_t d = dst.begin; d < dst.end && right[d].begin < left[s].end; ++d) {
        Index const begin = std::max(left[s].begin, right[d].begin);
        Index const end = std::min(left[s].end, right[d].end);
        if (begin >= end) continue;
        path_[level] = {begin, end - begin};
        visit(level + 1, {left[s].children, left[s + 1].children},
              {right[d].children, right[d + 1].children});
      }
    }
  }

 private:
  void emit(std::uint32_t src, std::uint32_t dst) {
    BoxDigit const* const left = src_.boxes->row(src);
    BoxDigit const* const right = dst_.boxes->row(dst);
    Overlap overlap{src_.boxes->piece(src), dst_.boxes->piece(dst), src_.boxes->offset(src),
                    dst_.boxes->offset(dst)};
    for (std::size_t k = 0; k < path_.size(); ++k) {
      overlap.src_offset += (path_[k].first - left[k].first) * left[k].stride;
      overlap.dst_offset += (path_[k].first - right[k].first) * right[k].stride;
    }
    emit_copies(overlap, left, right, targets_[overlap.dst].copies);
  }

  void emit_copies(Overlap overlap, BoxDigit const* left, BoxDigit const* right,
                   std::span<PieceCopy const> copies) {
    if (!copies.empty()) {
      for (Index i = 0; i < copies.front().count; ++i) {
        emit_copies(overlap, left, right, copies.subspan(1));
        overlap.dst_offset += copies.front().stride;
      }
      return;
    }
    result_.overlaps.push_back(overlap);
    for (std::size_t k = 0; k < path_.size(); ++k)
      result_.spans.push_back({path_[k].first, path_[k].count, left[k].stride, right[k].stride});
  }

  Trie const& src_;
  Trie const& dst_;
  std::span<Piece const> targets_;
  Join& result_;
  std::vector<Interval> path_;
};

}  // namespace

Join join(std::span<Piece const> src, std::span<Piece const> dst, std::span<AxisId const> order,
          AxisTable const& axes, std::span<Piece const> splits) {
  ElementaryDigits digits(order, axes);
  digits.add(src);
  digits.add(dst);
  digits.add(splits);
  digits.close();
  DigitBoxes src_boxes(digits);
  DigitBoxes dst_boxes(digits);
  src_boxes.add(src);
  dst_boxes.add(dst);
  Trie const src_trie(src_boxes);
  Trie const dst_trie(dst_boxes);
  Join result{digits.list(), {}, {}};
  result.overlaps.reserve(std::max(src.size(), dst.size()));
  result.spans.reserve(std::max(src.size(), dst.size()) * result.digits.size());
  Joiner(src_trie, dst_trie, dst, result).visit(0, {0, src_trie.roots()}, {0, dst_trie.roots()});
  return result;
}

void merge(std::span<OverlapDigit const> digits, std::vector<CopyDim>& dims) {
  dims.clear();
  for (OverlapDigit const& digit : digits)
    if (digit.count != 1) dims.push_back({digit.count, digit.src_stride, digit.dst_stride});
  auto const is_before = [](CopyDim const& a, CopyDim const& b) {
    return a.dst_stride != b.dst_stride ? a.dst_stride > b.dst_stride : a.src_stride > b.src_stride;
  };
  if (!std::ranges::is_sorted(dims, is_before)) std::ranges::stable_sort(dims, is_before);
  std::size_t kept = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    CopyDim const dim = dims[d];
    bool const continues = kept > 0 && dims[kept - 1].src_stride == dim.count * dim.src_stride &&
                           dims[kept - 1].dst_stride == dim.count * dim.dst_stride;
    if (continues)
      dims[kept - 1] = {dims[kept - 1].count * dim.count, dim.src_stride, dim.dst_stride};
    else
      dims[kept++] = dim;
  }
  dims.resize(kept);
}

}  // namespace reshard
