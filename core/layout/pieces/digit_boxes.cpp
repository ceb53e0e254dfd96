#include "core/layout/pieces/digit_boxes.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "core/base/error.hpp"

namespace reshard {

void DigitBoxes::add(std::span<Piece const> pieces) {
  rows_.reserve(rows_.size() + pieces.size() * width_);
  offsets_.reserve(offsets_.size() + pieces.size());
  pieces_.reserve(pieces_.size() + pieces.size());
  std::uint32_t number = 0;
  for (Piece const& piece : pieces) add(number++, piece);
}

void DigitBoxes::add(std::uint32_t number, Piece const& piece) {
  row_.assign(width_, BoxDigit{});
  has_digit_.assign(width_, 0);
  has_axis_.assign(digits_->axis_count(), 0);
  splits_.clear();
  bool is_empty = false;
  for (PieceDigit const& digit : piece.digits) {
    take(piece, digit);
    is_empty = is_empty || digit.count <= 0;
  }
  check_complete(piece);
  if (!is_empty) push_splits(number, piece.offset, 0);
}

void DigitBoxes::take(Piece const& piece, PieceDigit const& digit) {
  has_axis_[digits_->place_of(digit.axis)] = 1;
  ElementaryDigits::Range const range = digits_->range_of(digit);
  for (std::size_t k = range.begin; k < range.end; ++k) {
    if (has_digit_[k] != 0)
      fail(ErrorKind::usage,
           "axis '{}' appears twice in one stored tensor (tensor number {}): use each part of it "
           "once, in the name or in the shape.",
           digits_->axis_at(digits_->place_of(digit.axis)).name, index(piece.tensor));
    has_digit_[k] = 1;
  }
  if (range.end - range.begin == 1) {
    row_[range.begin] = {digit.first, digit.count, digit.stride};
  } else if (range.begin < range.end) {
    std::vector<Index> units = digits_->units(range);
    std::vector<Interval> rows = split_interval({digit.first, digit.count}, units);
    splits_.push_back({range.begin, std::move(units), std::move(rows), digit.first, digit.stride});
  }
}

void DigitBoxes::check_complete(Piece const& piece) const {
  for (std::size_t place = 0; place < has_axis_.size(); ++place) {
    bool const every_axis_is_present = has_axis_[place] != 0 || digits_->axis_at(place).size <= 1;
    RESHARD_EXPECT(every_axis_is_present);
  }
  for (std::size_t k = 0; k < width_; ++k)
    if (has_digit_[k] == 0 && digits_->extent(k) > 1) {
      JoinDigit const& digit = digits_->list()[k];
      fail(
          ErrorKind::usage,
          "axis '{}' (tensor number {}): a stored tensor leaves out (index mod {}) div {}, which others have. "
          "The parts of an axis in name and shape must make up the whole axis.",
          digits_->axis_at(digits_->place_of(digit.axis)).name, index(piece.tensor), digit.mod,
          digit.div);
    }
}

/// All combinations of the rows of the splits from `split` on.
void DigitBoxes::push_splits(std::uint32_t number, Index offset, std::size_t split) {
  if (split == splits_.size()) {
    push(number, offset);
    return;
  }
  Split const& here = splits_[split];
  std::size_t const width = here.units.size();
  for (std::size_t at = 0; at < here.rows.size(); at += width) {
    Index value = 0;
    for (std::size_t i = 0; i < width; ++i) {
      Interval const part = here.rows[at + i];
      value += part.first * here.units[i];
      row_[here.begin + i] = {part.first, part.count, here.stride * here.units[i]};
    }
    push_splits(number, offset + (value - here.first) * here.stride, split + 1);
  }
}

void DigitBoxes::push(std::uint32_t number, Index offset) {
  rows_.insert(rows_.end(), row_.begin(), row_.end());
  offsets_.push_back(offset);
  pieces_.push_back(number);
}

bool DigitBoxes::is_before(std::uint32_t a, std::uint32_t b) const {
  BoxDigit const* const left = row(a);
  BoxDigit const* const right = row(b);
  for (std::size_t k = 0; k < width_; ++k) {
    if (left[k].first != right[k].first) return left[k].first < right[k].first;
    if (left[k].count != right[k].count) return left[k].count < right[k].count;
  }
  return a < b;
}

/// Numbers in the order of the leading digits of each box, as many as fit into 63 bits: most
/// comparisons then touch no row.
std::vector<std::uint64_t> DigitBoxes::keys() const {
  std::vector<std::uint64_t> keys(size(), 0);
  int free_bits = 63;
  for (std::size_t k = 0; k < width_; ++k) {
    std::uint64_t greatest = 0;
    for (std::size_t box = 0; box < size(); ++box)
      greatest |= static_cast<std::uint64_t>(row(box)[k].first) |
                  static_cast<std::uint64_t>(row(box)[k].count);
    auto const bits = static_cast<int>(std::bit_width(greatest));
    if (2 * bits > free_bits) break;
    free_bits -= 2 * bits;
    for (std::size_t box = 0; box < size(); ++box)
      keys[box] = (keys[box] << (2 * bits)) |
                  static_cast<std::uint64_t>(row(box)[k].first) << bits |
                  static_cast<std::uint64_t>(row(box)[k].count);
  }
  return keys;
}

std::vector<std::uint32_t> DigitBoxes::sorted() const {
  std::vector<std::uint32_t> order(size());
  std::iota(order.begin(), order.end(), 0U);
  auto const less = [this](std::uint32_t a, std::uint32_t b) { return is_before(a, b); };
  if (std::ranges::is_sorted(order, less)) return order;
  std::vector<std::uint64_t> const all = keys();
  std::vector<std::pair<std::uint64_t, std::uint32_t>> keyed;
  keyed.reserve(size());
  for (std::uint32_t const box : order) keyed.emplace_back(all[box], box);
  std::ranges::sort(keyed, [this](auto const& a, auto const& b) {
    return a.first != b.first ? a.first < b.first : is_before(a.second, b.second);
  });
  for (std::size_t i = 0; i < keyed.size(); ++i) order[i] = keyed[i].second;
  return order;
}

}  // namespace reshard
