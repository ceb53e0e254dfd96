#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/pieces/elementary_digits.hpp"

namespace reshard {

/// One interval of a box, with the stride (elements of the blob) of its digit. Internal to this
/// library, as all of this header.
struct BoxDigit {
  Index first = 0;
  Index count = 1;
  Index stride = 0;
};

/// Pieces of one logical tensor as boxes over its elementary digits, in flat arrays: a piece is one
/// box unless its digits had to be split. Pieces without elements give none.
class DigitBoxes {
 public:
  explicit DigitBoxes(ElementaryDigits const& digits)
      : digits_(&digits), width_(digits.list().size()) {}

  /// Adds pieces, numbered from 0 on. A piece that lacks an axis is a bug; one that has a part of
  /// an axis twice or not at all is an Error of kind usage.
  void add(std::span<Piece const> pieces);

  std::size_t size() const { return pieces_.size(); }
  std::size_t width() const { return width_; }
  BoxDigit const* row(std::size_t box) const { return rows_.data() + box * width_; }
  Index offset(std::size_t box) const { return offsets_[box]; }
  std::uint32_t piece(std::size_t box) const { return pieces_[box]; }

  /// The boxes in lexicographic order of (first, count) per digit, ties by number.
  std::vector<std::uint32_t> sorted() const;

 private:
  /// A digit that covers several elementary ones, as the rows of split_interval().
  struct Split {
    std::size_t begin = 0;
    std::vector<Index> units;
    std::vector<Interval> rows;
    Index first = 0;
    Index stride = 0;
  };

  void add(std::uint32_t number, Piece const& piece);
  void take(Piece const& piece, PieceDigit const& digit);
  void check_complete(Piece const& piece) const;
  bool is_before(std::uint32_t a, std::uint32_t b) const;
  std::vector<std::uint64_t> keys() const;
  void push(std::uint32_t number, Index offset);
  void push_splits(std::uint32_t number, Index offset, std::size_t split);

  ElementaryDigits const* digits_;
  std::size_t width_;
  std::vector<BoxDigit> rows_;
  std::vector<Index> offsets_;
  std::vector<std::uint32_t> pieces_;
  std::vector<BoxDigit> row_;    ///< of the piece being added
  std::vector<char> has_digit_;  ///< per elementary digit, of the piece being added
  std::vector<char> has_axis_;   ///< per axis, of the piece being added
  std::vector<Split> splits_;    ///< of the piece being added
};

}  // namespace reshard
