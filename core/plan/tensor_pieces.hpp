#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "core/layout/pieces/piece_table.hpp"

namespace reshard {

/// The number of elements from the start of a blob to the last one of a piece.
Index reach(Piece const& piece);

/// Pieces of one logical tensor on one side. Piece i lies in blob(i); its strides and its offset
/// are in elements of the blob. Every rank stores those of the complete checkpoint, so a piece is
/// stored as the numbers of its frame and its form (core/layout/pieces/piece_table.hpp) and made on
/// request.
class TensorPieces {
 public:
  TensorPieces() = default;
  TensorPieces(TensorPieces const& other);
  TensorPieces(TensorPieces&& other) noexcept;
  TensorPieces& operator=(TensorPieces const& other) { return *this = TensorPieces(other); }
  TensorPieces& operator=(TensorPieces&& other) noexcept;
  ~TensorPieces() {
    if (capacity() > 1) delete[] many();
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  Piece operator[](std::size_t i) const { return piece_of(tensor_, frame(i), form(i), offset(i)); }
  /// All of them, or those at some places: for join() and tile().
  std::vector<Piece> made() const;
  std::vector<Piece> made(std::span<std::uint32_t const> places) const;

  TensorId tensor() const { return tensor_; }  ///< of all the pieces
  std::uint32_t blob(std::size_t i) const { return words()[i]; }
  std::span<std::uint32_t const> blobs() const { return {words(), size_}; }
  std::uint32_t frame(std::size_t i) const { return number(frames_at, i); }
  std::uint32_t form(std::size_t i) const { return number(forms_at, i); }
  Index offset(std::size_t i) const {
    return !rare_ || rare_->offsets.empty() ? 0 : rare_->offsets[i];
  }
  /// Whether the piece is a declared copy of another one (tied embeddings): such a piece is never
  /// read, always written.
  bool is_copy(std::size_t i) const { return rare_ && !rare_->copies.empty() && rare_->copies[i]; }
  bool has_copies() const { return rare_ && rare_->copy_count > 0; }
  /// elements_hash() of its digits: equal for pieces with the same elements.
  std::uint64_t box(std::size_t i) const { return frame_hash(frame(i)) + form_hash(form(i)); }
  /// reach() of a piece.
  Index reach_of(std::size_t i) const;

  /// Pre: the piece is of the same tensor as the others.
  void add(Piece const& piece, std::uint32_t blob, bool copy);
  void add(InternedPiece const& piece, std::uint32_t blob, bool copy);
  /// Replaces a piece, except for its blob and its copy flag.
  void set(std::size_t i, Piece const& piece);
  void set_blob(std::size_t i, std::uint32_t blob) { words()[i] = blob; }
  void set_copy(std::size_t i, bool copy);
  void erase(std::size_t i);
  /// Makes them pieces of another tensor.
  void set_tensor(TensorId tensor) { tensor_ = tensor; }
  /// Frees the spare capacity for further pieces.
  void shrink();

 private:
  /// Members that few tensors need.
  struct Rare {
    std::vector<Index> offsets;  ///< empty if all are 0
    std::vector<bool> copies;    ///< empty if none is a copy
    std::size_t copy_count = 0;
  };
  enum Numbers : std::uint32_t { frames_at, forms_at };
  static constexpr std::uint32_t wide_bit = 1U << 31U;

  std::uint32_t capacity() const { return room_ & ~wide_bit; }  ///< in pieces
  /// Whether numbers of frames and forms take 4 bytes instead of 2.
  bool is_wide() const { return room_ >= wide_bit || room_ == 1; }

  std::uint32_t const* words() const { return capacity() > 1 ? many() : here_.data(); }
  std::uint32_t* words() { return capacity() > 1 ? many() : here_.data(); }
  std::uint32_t* many() const {
    std::uint32_t* first = nullptr;
    std::memcpy(&first, here_.data(), sizeof first);
    return first;
  }
  std::uint32_t number(Numbers which, std::size_t i) const {
    std::uint32_t const* const numbers = words() + capacity();
    std::size_t const at = which * capacity() + i;
    if (is_wide()) return numbers[at];
    std::uint16_t narrow = 0;
    std::memcpy(&narrow, reinterpret_cast<std::byte const*>(numbers) + at * sizeof narrow,
                sizeof narrow);
    return narrow;
  }
  void set_number(Numbers which, std::size_t i, std::uint32_t number);
  Rare& rare();
  /// Moves the pieces into memory for `capacity` of them; `wide` is set if a number needs it.
  void allocate(std::uint32_t capacity, bool wide);
  /// Makes room for these numbers of a piece.
  void make_fit(std::uint32_t frame, std::uint32_t form);

  TensorId tensor_{};
  std::uint32_t size_ = 0;
  std::uint32_t room_ = 1;  ///< capacity(), and wide_bit if is_wide()
  /// The numbers of a single piece, as most tensors of plain checkpoints have: blob, frame, form.
  /// With a greater capacity, the address of all blobs, then all frames, then all forms.
  std::array<std::uint32_t, 3> here_{};
  std::unique_ptr<Rare> rare_;
};

}  // namespace reshard
