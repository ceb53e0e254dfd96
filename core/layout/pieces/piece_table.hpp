#pragma once

#include <cstdint>
#include <span>

#include "core/layout/pieces/piece.hpp"

namespace reshard {

/// The pieces of many ranks are a few forms in many places. A piece is its *frame*, its *form*, its
/// tensor and its offset:
///  - the frame has its digits of one value and stride 0, which are numbers of the stored name
///    or of the rank (layer 5, expert 17), sorted by (axis, coarse digits first);
///  - the form has its other digits, in their order, and its copies.
/// The process stores each distinct frame and form once, until it ends. Equal ones have equal
/// numbers. Reading takes no lock.
std::uint32_t frame_of(Piece const& piece);
std::uint32_t form_of(Piece const& piece);
PieceDigits const& frame_digits(std::uint32_t frame);
PieceDigits const& form_digits(std::uint32_t form);
std::span<PieceCopy const> form_copies(std::uint32_t form);

/// The compact form of a piece, for large numbers of them.
struct InternedPiece {
  TensorId tensor{};
  std::uint32_t frame = 0;
  std::uint32_t form = 0;
  Index offset = 0;
  friend bool operator==(InternedPiece const&, InternedPiece const&) = default;
};
InternedPiece interned(Piece const& piece);

/// elements_hash() of the digits of a frame or form; that of a piece is the sum of the two.
std::uint64_t frame_hash(std::uint32_t frame);
std::uint64_t form_hash(std::uint32_t form);

/// The piece with the digits of its form, then those of its frame.
Piece piece_of(TensorId tensor, std::uint32_t frame, std::uint32_t form, Index offset);

/// A hash of the elements of digits, independent of their order and strides: a sum over the digits.
std::uint64_t elements_hash(PieceDigits const& digits);

}  // namespace reshard
