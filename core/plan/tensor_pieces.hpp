#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "core/layout/piece_table.hpp"

namespace reshard {

/// The number of elements from the start of a blob to the last one of a piece.
Index reach(Piece const& piece);

/// Pieces of one logical tensor on one side. Piece i lies in blob(i); its strides and its offset
/// are in elements of the blob. Every rank stores those of the complete checkpoint, so a piece is
/// stored as the numbers of its frame and its form (core/layout/piece_table.hpp) and made on
/// request.
class TensorPieces {
 public:
  TensorPieces() = default;
  TensorPieces(TensorPieces const& other);
  TensorPieces(TensorPieces&& other) noexcept;
  TensorPieces& operator=(TensorPieces const& other) { return *this = TensorPieces(other); }
  TensorPieces& operator=(TensorPieces&& other) noexcept;
  ~TensorPieces() {
    if (capacity_ > 1) delete[] many();
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  Piece operator[](std::size_t i) const { return piece_of(tensor_, frame(i), form(i), offset(i)); }
  /// All of them, or those at some places: for join() and tile().
  std::vector<Piece> made() const;
  std::vector<Piece> made(std::span<std::uint32_t const> places) const;

  TensorId tensor() const { return tensor_; }  ///< of all the pieces
  std::uint32_t blob(std::size_t i) const { return column(blobs_at)[i]; }
  std::span<std::uint32_t const> blobs() const { return {column(blobs_at), size_}; }
  std::uint32_t frame(std::size_t i) const { return column(frames_at)[i]; }
  std::uint32_t form(std::size_t i) const { return column(forms_at)[i]; }
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
  void set_blob(std::size_t i, std::uint32_t blob) { column(blobs_at)[i] = blob; }
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
  enum Column : std::uint32_t { blobs_at, frames_at, forms_at, columns };

  std::uint32_t const* column(Column which) const {
    return (capacity_ > 1 ? many() : here_.data()) + which * capacity_;
  }
  std::uint32_t* column(Column which) {
    return (capacity_ > 1 ? many() : here_.data()) + which * capacity_;
  }
  std::uint32_t* many() const {
    std::uint32_t* first = nullptr;
    std::memcpy(&first, here_.data(), sizeof first);
    return first;
  }
  Rare& rare();
  void set_capacity(std::uint32_t capacity);

  TensorId tensor_{};
  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = 1;  ///< of each column
  /// The columns of a single piece, as most tensors of plain checkpoints have; with a greater
  /// capacity, the address of the columns.
  std::array<std::uint32_t, columns> here_{};
  std::unique_ptr<Rare> rare_;
};

}  // namespace reshard
