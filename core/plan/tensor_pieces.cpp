#include "core/plan/tensor_pieces.hpp"

#include "core/base/error.hpp"

namespace reshard {
namespace {

template <class T>
void erase_at(std::vector<T>& all, std::size_t i) {
  if (!all.empty()) all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
}

/// From the first to the last element of a form.
Index extent(PieceDigits const& digits, std::span<PieceCopy const> copies) {
  Index last = 0;
  for (PieceDigit const& digit : digits) last += (digit.count - 1) * digit.stride;
  for (PieceCopy const& copy : copies) last += (copy.count - 1) * copy.stride;
  return last + 1;
}

}  // namespace

Index reach(Piece const& piece) { return piece.offset + extent(piece.digits, piece.copies); }

Index TensorPieces::reach_of(std::size_t i) const {
  return offset(i) + extent(form_digits(forms_[i]), form_copies(forms_[i]));
}

std::vector<Piece> TensorPieces::made() const {
  std::vector<Piece> pieces;
  pieces.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) pieces.push_back((*this)[i]);
  return pieces;
}

std::vector<Piece> TensorPieces::made(std::span<std::uint32_t const> places) const {
  std::vector<Piece> pieces;
  pieces.reserve(places.size());
  for (std::uint32_t const i : places) pieces.push_back((*this)[i]);
  return pieces;
}

void TensorPieces::add(Piece const& piece, std::uint32_t blob, bool copy) {
  add(interned(piece), blob, copy);
}

void TensorPieces::add(InternedPiece const& piece, std::uint32_t blob, bool copy) {
  RESHARD_EXPECT(empty() || piece.tensor == tensor_);
  tensor_ = piece.tensor;
  blobs_.push_back(blob);
  frames_.push_back(piece.frame);
  forms_.push_back(piece.form);
  if (piece.offset != 0 || !offsets_.empty()) {
    offsets_.resize(size() - 1, 0);
    offsets_.push_back(piece.offset);
  }
  if (!copies_.empty()) copies_.push_back(false);
  if (copy) set_copy(size() - 1, true);
}

void TensorPieces::set(std::size_t i, Piece const& piece) {
  RESHARD_EXPECT(piece.tensor == tensor_);
  frames_[i] = frame_of(piece);
  forms_[i] = form_of(piece);
  if (piece.offset == 0 && offsets_.empty()) return;
  offsets_.resize(size(), 0);
  offsets_[i] = piece.offset;
}

void TensorPieces::set_copy(std::size_t i, bool copy) {
  if (is_copy(i) == copy) return;
  copies_.resize(size(), false);
  copies_[i] = copy;
  if (copy)
    ++copy_count_;
  else
    --copy_count_;
}

void TensorPieces::erase(std::size_t i) {
  set_copy(i, false);
  erase_at(blobs_, i);
  erase_at(frames_, i);
  erase_at(forms_, i);
  erase_at(offsets_, i);
  erase_at(copies_, i);
}

void TensorPieces::shrink() {
  blobs_.shrink_to_fit();
  frames_.shrink_to_fit();
  forms_.shrink_to_fit();
  offsets_.shrink_to_fit();
  copies_.shrink_to_fit();
}

}  // namespace reshard
