#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/piece_table.hpp"

namespace reshard {

/// Elements from the start of a blob to the last that a piece reaches.
Index reach(Piece const& piece);

/// Pieces of one logical tensor on one side. Piece i lies in blob(i); its strides and its offset
/// are in elements of the blob. Every rank holds those of the complete checkpoint, so that a piece
/// is numbers of its frame and its form (core/layout/piece_table.hpp): it is made where it is asked
/// for.
class TensorPieces {
 public:
  std::size_t size() const { return blobs_.size(); }
  bool empty() const { return blobs_.empty(); }

  Piece operator[](std::size_t i) const {
    return piece_of(tensor_, frames_[i], forms_[i], offset(i));
  }
  /// All of them, or those at some places: for join() and tile().
  std::vector<Piece> made() const;
  std::vector<Piece> made(std::span<std::uint32_t const> places) const;

  TensorId tensor() const { return tensor_; }  ///< of all the pieces
  std::uint32_t blob(std::size_t i) const { return blobs_[i]; }
  std::span<std::uint32_t const> blobs() const { return blobs_; }
  std::uint32_t frame(std::size_t i) const { return frames_[i]; }
  std::uint32_t form(std::size_t i) const { return forms_[i]; }
  Index offset(std::size_t i) const { return offsets_.empty() ? 0 : offsets_[i]; }
  /// Whether it holds what another piece holds by declaration (tied embeddings): such a piece is
  /// never read, always written.
  bool is_copy(std::size_t i) const { return !copies_.empty() && copies_[i]; }
  bool has_copies() const { return copy_count_ > 0; }
  /// elements_hash() of its digits: equal where the elements are the same.
  std::uint64_t box(std::size_t i) const { return frame_hash(frames_[i]) + form_hash(forms_[i]); }
  /// reach() of a piece.
  Index reach_of(std::size_t i) const;

  /// Pre: of the tensor of the pieces that are there.
  void add(Piece const& piece, std::uint32_t blob, bool copy);
  void add(InternedPiece const& piece, std::uint32_t blob, bool copy);
  /// Takes the place of a piece. Its blob and whether it is a copy stay.
  void set(std::size_t i, Piece const& piece);
  void set_blob(std::size_t i, std::uint32_t blob) { blobs_[i] = blob; }
  void set_copy(std::size_t i, bool copy);
  void erase(std::size_t i);
  /// Makes them pieces of another tensor.
  void set_tensor(TensorId tensor) { tensor_ = tensor; }
  /// Lets go of memory for further pieces.
  void shrink();

 private:
  TensorId tensor_{};
  std::size_t copy_count_ = 0;
  std::vector<std::uint32_t> blobs_;
  std::vector<std::uint32_t> frames_;
  std::vector<std::uint32_t> forms_;
  std::vector<Index> offsets_;  ///< empty where all are 0
  std::vector<bool> copies_;    ///< empty where none is a copy
};

}  // namespace reshard
