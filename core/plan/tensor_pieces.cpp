#include "core/plan/tensor_pieces.hpp"

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard {
namespace {

template <class T>
void erase_at(std::vector<T>& all, std::size_t i) {
  if (!all.empty()) all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
}

bool takes_four_bytes(std::uint32_t number) { return number > 0xffffU; }

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
  allocate(other.size_, other.is_wide());
  size_ = other.size_;
  std::copy_n(other.words(), size_, words());
  for (Numbers const which : {frames_at, forms_at})
    for (std::size_t i = 0; i < size_; ++i) set_number(which, i, other.number(which, i));
}

TensorPieces::TensorPieces(TensorPieces&& other) noexcept
    : tensor_(other.tensor_),
      size_(std::exchange(other.size_, 0)),
      room_(std::exchange(other.room_, 1)),
      here_(other.here_),
      rare_(std::move(other.rare_)) {}

TensorPieces& TensorPieces::operator=(TensorPieces&& other) noexcept {
  std::swap(tensor_, other.tensor_);
  std::swap(size_, other.size_);
  std::swap(room_, other.room_);
  std::swap(here_, other.here_);
  std::swap(rare_, other.rare_);
  return *this;
}

TensorPieces::Rare& TensorPieces::rare() {
  if (!rare_) rare_ = std::make_unique<Rare>();
  return *rare_;
}

void TensorPieces::allocate(std::uint32_t capacity, bool wide) {
  for (Numbers const which : {frames_at, forms_at})
    for (std::size_t i = 0; i < size_; ++i) wide = wide || takes_four_bytes(number(which, i));
  TensorPieces moved;
  if (capacity > 1) {
    auto* const first = new std::uint32_t[std::size_t{wide ? 3U : 2U} * capacity];
    std::memcpy(moved.here_.data(), &first, sizeof first);
    moved.room_ = capacity | (wide ? wide_bit : 0);
  }
  moved.tensor_ = tensor_;
  moved.size_ = size_;
  moved.rare_ = std::move(rare_);
  std::copy_n(words(), size_, moved.words());
  for (Numbers const which : {frames_at, forms_at})
    for (std::size_t i = 0; i < size_; ++i) moved.set_number(which, i, number(which, i));
  *this = std::move(moved);
}

void TensorPieces::make_fit(std::uint32_t frame, std::uint32_t form) {
  if (!is_wide() && (takes_four_bytes(frame) || takes_four_bytes(form))) allocate(capacity(), true);
}

void TensorPieces::set_number(Numbers which, std::size_t i, std::uint32_t number) {
  auto const narrowed = static_cast<std::uint16_t>(number);
  RESHARD_EXPECT(narrowed == number || is_wide());
  std::uint32_t* const numbers = words() + capacity();
  std::size_t const at = which * capacity() + i;
  if (is_wide())
    numbers[at] = number;
  else
    std::memcpy(reinterpret_cast<std::byte*>(numbers) + at * sizeof narrowed, &narrowed,
                sizeof narrowed);
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
  if (size_ == capacity())
    allocate(std::max(1U, narrow<std::uint32_t>(std::size_t{2} * size_)), false);
  make_fit(piece.frame, piece.form);
  std::size_t const at = size_++;
  words()[at] = blob;
  set_number(frames_at, at, piece.frame);
  set_number(forms_at, at, piece.form);
  if (piece.offset != 0 || (rare_ && !rare_->offsets.empty())) {
    rare().offsets.resize(size_ - 1, 0);
    rare().offsets.push_back(piece.offset);
  }
  if (rare_ && !rare_->copies.empty()) rare_->copies.push_back(false);
  if (copy) set_copy(size_ - 1, true);
}

void TensorPieces::set(std::size_t i, Piece const& piece) {
  RESHARD_EXPECT(piece.tensor == tensor_);
  std::uint32_t const frame = frame_of(piece);
  std::uint32_t const form = form_of(piece);
  make_fit(frame, form);
  set_number(frames_at, i, frame);
  set_number(forms_at, i, form);
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
  std::copy(words() + i + 1, words() + size_, words() + i);
  for (Numbers const which : {frames_at, forms_at})
    for (std::size_t at = i; at + 1 < size_; ++at) set_number(which, at, number(which, at + 1));
  --size_;
  if (!rare_) return;
  erase_at(rare_->offsets, i);
  erase_at(rare_->copies, i);
}

void TensorPieces::shrink() {
  if (std::max(1U, size_) != capacity()) allocate(size_, false);
  if (!rare_) return;
  rare_->offsets.shrink_to_fit();
  rare_->copies.shrink_to_fit();
}

}  // namespace reshard
