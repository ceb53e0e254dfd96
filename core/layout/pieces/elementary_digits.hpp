#pragma once

#include <span>
#include <vector>

#include "core/base/range.hpp"
#include "core/layout/pieces/join.hpp"

namespace reshard {

/// Values [first, first + count) of one digit. Internal to this library, as all of this header.
struct Interval {
  Index first = 0;
  Index count = 1;
  friend bool operator==(Interval const&, Interval const&) = default;
};

/// Splits the interval [first, first + count) of an index into boxes over its digits, coarsest
/// first. units[i] is the step of digit i in index values; units.back() is 1, and each divides the
/// one before it. Result: rows of units.size() intervals, in order of the index.
///
///   [5, 95) over units {32, 1}: (0+1, 5+27) (1+1, 0+32) (2+1, 0+31).
std::vector<Interval> split_interval(Interval whole, std::span<Index const> units);

/// The coarsest digits into which all digits of some pieces of one logical tensor can be split.
class ElementaryDigits {
 public:
  /// Digits [begin, end) of list().
  using Range = HalfOpen<std::size_t>;

  ElementaryDigits(std::span<AxisId const> order, AxisTable const& axes);

  /// Phase 1: adds a digit that must become complete elementary digits. An axis that is not in
  /// `order` is an Error of kind usage.
  void add(PieceDigit const& digit);
  void add(std::span<Piece const> pieces);
  /// Phase 2: no more digits. Radices of an axis that do not nest are an Error of kind usage.
  void close();

  /// After close(), in the given order of axes, each from its coarsest digit to its finest. Digits
  /// of one value are left out.
  std::vector<JoinDigit> const& list() const { return list_; }
  /// The number of values of list()[k].
  Index extent(std::size_t k) const { return extents_[k]; }
  /// The elementary digits of an added digit; empty if it has only one value.
  Range range_of(PieceDigit const& digit) const;
  /// The units of a digit's elementary digits for split_interval().
  std::vector<Index> units(Range range) const;
  /// The number of axes, and the place of an axis in the given order.
  std::size_t axis_count() const { return slots_.size(); }
  std::size_t place_of(AxisId axis) const {
    return static_cast<std::size_t>(&slot(axis) - slots_.data());
  }
  Axis const& axis_at(std::size_t place) const { return (*axes_)[slots_[place].axis]; }

 private:
  struct Slot {
    AxisId axis = 0;
    Index size = 0;
    std::vector<Index> radices;  ///< below the size; ascending after close()
    Range range;
  };
  Slot const& slot(AxisId axis) const;
  void append_digits(Slot& slot);

  AxisTable const* axes_;
  std::vector<Slot> slots_;
  std::vector<int> slot_of_axis_;
  std::vector<JoinDigit> list_;
  std::vector<Index> extents_;
};

}  // namespace reshard
