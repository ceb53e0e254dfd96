#include "core/plan/tensor_pieces.hpp"

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/integers.hpp"

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

TensorPieces::TensorPieces(TensorPieces const& other)
    : tensor_(other.tensor_), rare_(other.rare_ ? std::make_unique<Rare>(*other.rare_) : nullptr) {
  set_capacity(other.size_);
  for (Column const which : {blobs_at, frames_at, forms_at})
    std::copy_n(other.column(which), other.size_, column(which));
  size_ = other.size_;
}

TensorPieces::TensorPieces(TensorPieces&& other) noexcept
    : tensor_(other.tensor_),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 1)),
      here_(other.here_),
      rare_(std::move(other.rare_)) {}

TensorPieces& TensorPieces::operator=(TensorPieces&& other) noexcept {
  std::swap(tensor_, other.tensor_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  std::swap(here_, other.here_);
  std::swap(rare_, other.rare_);
  return *this;
}

TensorPieces::Rare& TensorPieces::rare() {
  if (!rare_) rare_ = std::make_unique<Rare>();
  return *rare_;
}

void TensorPieces::set_capacity(std::uint32_t capacity) {
  capacity = std::max(1U, capacity);
  if (capacity == capacity_) return;
  std::array<std::uint32_t, columns> here{};
  std::uint32_t* const moved =
      capacity > 1 ? new std::uint32_t[std::size_t{columns} * capacity] : here.data();
  for (Column const which : {blobs_at, frames_at, forms_at})
    std::copy_n(column(which), size_, moved + std::size_t{which} * capacity);
  if (capacity > 1) std::memcpy(here.data(), &moved, sizeof moved);
  if (capacity_ > 1) delete[] many();
  here_ = here;
  capacity_ = capacity;
}

Index reach(Piece const& piece) { return piece.offset + extent(piece.digits, piece.copies); }

Index TensorPieces::reach_of(std::size_t i) const {
  return offset(i) + extent(form_digits(form(i)), form_copies(form(i)));
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
  if (size_ == capacity_) set_capacity(std::max(1U, narrow<std::uint32_t>(std::size_t{2} * size_)));
  column(blobs_at)[size_] = blob;
  column(frames_at)[size_] = piece.frame;
  column(forms_at)[size_] = piece.form;
  ++size_;
  if (piece.offset != 0 || (rare_ && !rare_->offsets.empty())) {
    rare().offsets.resize(size_ - 1, 0);
    rare().offsets.push_back(piece.offset);
  }
  if (rare_ && !rare_->copies.empty()) rare_->copies.push_back(false);
  if (copy) set_copy(size_ - 1, true);
}

void TensorPieces::set(std::size_t i, Piece const& piece) {
  RESHARD_EXPECT(piece.tensor == tensor_);
  column(frames_at)[i] = frame_of(piece);
  column(forms_at)[i] = form_of(piece);
  if (piece.offset == 0 && (!rare_ || rare_->offsets.empty())) return;
  rare().offsets.resize(size_, 0);
  rare_->offsets[i] = piece.offset;
}

void TensorPieces::set_copy(std::size_t i, bool copy) {
  if (is_copy(i) == copy) return;
  rare().copies.resize(size_, false);
  rare_->copies[i] = copy;
  if (copy)
    ++rare_->copy_count;
  else
    --rare_->copy_count;
}

void TensorPieces::erase(std::size_t i) {
  set_copy(i, false);
  for (Column const which : {blobs_at, frames_at, forms_at})
    std::copy(column(which) + i + 1, column(which) + size_, column(which) + i);
  --size_;
  if (!rare_) return;
  erase_at(rare_->offsets, i);
  erase_at(rare_->copies, i);
}

void TensorPieces::shrink() {
  set_capacity(size_);
  if (!rare_) return;
  rare_->offsets.shrink_to_fit();
  rare_->copies.shrink_to_fit();
}

}  // namespace reshard
