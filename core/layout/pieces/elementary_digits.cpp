#include "core/layout/pieces/elementary_digits.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace reshard {
namespace {

struct Splitter {
  std::span<Index const> units;
  std::vector<Interval> path;
  std::vector<Interval> rows;

  void split(std::size_t digit, Index begin, Index end) {
    if (digit + 1 == units.size()) {
      path[digit] = {begin, end - begin};
      rows.insert(rows.end(), path.begin(), path.end());
      return;
    }
    Index const inner = units[digit];
    Index const whole_begin = begin / inner + (begin % inner != 0 ? 1 : 0);
    Index const whole_end = end / inner;
    if (whole_begin > whole_end) {
      step(digit, {whole_end, 1}, begin - whole_end * inner, end - whole_end * inner);
      return;
    }
    if (begin < whole_begin * inner)
      step(digit, {whole_begin - 1, 1}, begin - (whole_begin - 1) * inner, inner);
    if (whole_begin < whole_end) step(digit, {whole_begin, whole_end - whole_begin}, 0, inner);
    if (whole_end * inner < end) step(digit, {whole_end, 1}, 0, end - whole_end * inner);
  }

  void step(std::size_t digit, Interval here, Index begin, Index end) {
    path[digit] = here;
    split(digit + 1, begin, end);
  }
};

}  // namespace

std::vector<Interval> split_interval(Interval whole, std::span<Index const> units) {
  RESHARD_EXPECT(!units.empty() && units.back() == 1);
  if (whole.count <= 0) return {};
  Splitter splitter{units, std::vector<Interval>(units.size()), {}};
  splitter.split(0, whole.first, whole.first + whole.count);
  return std::move(splitter.rows);
}

ElementaryDigits::ElementaryDigits(std::span<AxisId const> order, AxisTable const& axes)
    : axes_(&axes), slot_of_axis_(axes.size(), -1) {
  for (AxisId const axis : order) {
    RESHARD_EXPECT(axis < axes.size() && slot_of_axis_[axis] < 0);
    slot_of_axis_[axis] = static_cast<int>(slots_.size());
    slots_.push_back({axis, axes[axis].size, {}, {}});
  }
}

ElementaryDigits::Slot const& ElementaryDigits::slot(AxisId axis) const {
  RESHARD_EXPECT(axis < slot_of_axis_.size());
  int const found = slot_of_axis_[axis];
  if (found < 0)
    fail(ErrorKind::usage,
         "axis '{}' is in a stored tensor, but the logical tensor has no such axis. Write '*{}' if "
         "its values repeat along it.",
         (*axes_)[axis].name, (*axes_)[axis].name);
  return slots_[static_cast<std::size_t>(found)];
}

void ElementaryDigits::add(PieceDigit const& digit) {
  Slot const& found = slot(digit.axis);
  RESHARD_EXPECT(digit.div >= 1 && digit.mod >= digit.div);
  if (digit.mod == digit.div) return;
  Slot& slot = slots_[static_cast<std::size_t>(&found - slots_.data())];
  for (Index const radix : {digit.div, digit.mod}) {
    bool const is_top = radix >= slot.size;
    if (!is_top && std::ranges::find(slot.radices, radix) == slot.radices.end())
      slot.radices.push_back(radix);
  }
}

void ElementaryDigits::add(std::span<Piece const> pieces) {
  for (Piece const& piece : pieces)
    for (PieceDigit const& digit : piece.digits) add(digit);
}

void ElementaryDigits::close() {
  for (Slot& slot : slots_) {
    std::ranges::sort(slot.radices);
    for (std::size_t i = 1; i < slot.radices.size(); ++i)
      if (slot.radices[i] % slot.radices[i - 1] != 0)
        fail(
            ErrorKind::usage,
            "axis '{}' (size {}) is counted in blocks of {} in one stored tensor and of {} in another, and {} does not divide {}. "
            "Blocks of one axis must nest: choose counts that divide each other.",
            (*axes_)[slot.axis].name, slot.size, slot.radices[i - 1], slot.radices[i],
            slot.radices[i - 1], slot.radices[i]);
    append_digits(slot);
  }
}

void ElementaryDigits::append_digits(Slot& slot) {
  slot.range.begin = list_.size();
  if (!slot.radices.empty()) {
    Index const coarsest = slot.radices.back();
    Index const blocks = slot.size / coarsest + (slot.size % coarsest != 0 ? 1 : 0);
    list_.push_back({slot.axis, blocks * coarsest, coarsest});
    extents_.push_back(blocks);
    for (std::size_t i = slot.radices.size(); i-- > 1;) {
      list_.push_back({slot.axis, slot.radices[i], slot.radices[i - 1]});
      extents_.push_back(slot.radices[i] / slot.radices[i - 1]);
    }
  }
  slot.range.end = list_.size();
}

ElementaryDigits::Range ElementaryDigits::range_of(PieceDigit const& digit) const {
  Slot const& found = slot(digit.axis);
  if (digit.mod == digit.div || digit.div >= found.size)
    return {found.range.begin, found.range.begin};
  std::size_t begin = found.range.begin;
  if (digit.mod < found.size)
    while (begin < found.range.end && list_[begin].mod != digit.mod) ++begin;
  std::size_t end = begin;
  while (end < found.range.end && list_[end].div >= digit.div) ++end;
  RESHARD_EXPECT(end > begin && list_[end - 1].div == digit.div);
  return {begin, end};
}

std::vector<Index> ElementaryDigits::units(Range range) const {
  std::vector<Index> units;
  for (std::size_t k = range.begin; k < range.end; ++k)
    units.push_back(list_[k].div / list_[range.end - 1].div);
  return units;
}

}  // namespace reshard
