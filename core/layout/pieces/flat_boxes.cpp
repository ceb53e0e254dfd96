#include "core/layout/pieces/flat_boxes.hpp"

#include "core/base/error.hpp"

namespace reshard {
namespace {

class Cutter {
 public:
  Cutter(std::span<Index const> shape, Index first)
      : shape_(shape), first_(first), row_(shape.size(), 0) {}

  /// Elements [begin, end) of the block of dimensions d, d + 1, … whose rows before d are row_;
  /// `at` is the block's first element in the tensor.
  void cut(std::size_t d, Index begin, Index end, Index at) {
    if (begin == end) return;
    Index inner = 1;
    for (std::size_t i = d + 1; i < shape_.size(); ++i) inner *= shape_[i];
    if (d + 1 >= shape_.size()) return add(d, begin, end, at + begin);
    Index const first = begin / inner;
    Index const last = end / inner;
    if (first == last)
      return part(d, first, begin - first * inner, end - first * inner, at + first * inner);
    Index const whole = begin % inner == 0 ? first : first + 1;
    if (whole != first) part(d, first, begin - first * inner, inner, at + first * inner);
    if (whole < last) add(d, whole, last, at + whole * inner);
    part(d, last, 0, end - last * inner, at + last * inner);
  }

  std::vector<FlatBox> take() { return std::move(boxes_); }

 private:
  void part(std::size_t d, Index row, Index begin, Index end, Index at) {
    row_[d] = row;
    cut(d + 1, begin, end, at);
  }

  void add(std::size_t d, Index begin, Index end, Index at) {
    FlatBox flat;
    flat.offset = at - first_;
    for (std::size_t i = 0; i < shape_.size(); ++i) {
      flat.box.begin.push_back(i < d ? row_[i] : i == d ? begin : 0);
      flat.box.end.push_back(i < d ? row_[i] + 1 : i == d ? end : shape_[i]);
    }
    boxes_.push_back(std::move(flat));
  }

  std::span<Index const> shape_;
  Index first_;
  std::vector<Index> row_;
  std::vector<FlatBox> boxes_;
};

}  // namespace

std::vector<FlatBox> flat_boxes(std::span<Index const> shape, Index begin, Index end) {
  RESHARD_EXPECT(0 <= begin && begin <= end);
  Cutter cutter(shape, begin);
  cutter.cut(0, begin, end, 0);
  return cutter.take();
}

}  // namespace reshard
