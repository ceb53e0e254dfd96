#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/layout/join.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// What a piece has of one slice, without the digits that all of the slice has. Internal to this
/// library, as all of this header.
struct SlicePiece {
  std::uint32_t piece = 0;  ///< in TensorPieces
  std::uint32_t frame = 0;  ///< of piece_table.hpp, as `form`
  std::uint32_t form = 0;
  Index offset = 0;  ///< in the blob, of its first element in the slice

  Piece inner(TensorId tensor) const;  ///< at offset 0
};

/// An axis along which a tensor is cut into slices. A slice's key is the sum of its indices, each
/// times the unit of its axis.
struct SliceAxis {
  AxisId axis = 0;
  std::uint64_t unit = 1;
  std::uint64_t size = 1;
};

/// Both sides' pieces of one slice.
struct Slice {
  std::uint64_t key = 0;
  std::span<SlicePiece const> source;
  std::span<SlicePiece const> target;  ///< by place in their files
};

/// A logical tensor cut into slices: one for each combination of the indices that stand in names of
/// stored tensors on one side at least (each expert of each layer). Slices of a tensor are mostly
/// alike but for the places of their pieces, so that few of them have to be joined. A tensor
/// without such indices is one slice.
class TensorSlices {
 public:
  /// `chosen` are the pieces of the source that are read. Every slice has a part of each of
  /// `blocks` or nothing of it (part_of()).
  TensorSlices(AxisTable const& axes, std::span<DomainAxis const> domain,
               TensorPieces const& source, std::span<std::uint32_t const> chosen,
               TensorPieces const& target, Catalog const& target_catalog,
               std::span<Piece const> blocks);

  std::size_t size() const { return slices_.size(); }
  Slice operator[](std::size_t number) const;

  /// Whether the axis is the same throughout a slice.
  bool is_cut(AxisId axis) const;
  /// What a slice has of a block, without the digits of the axes that are cut.
  std::optional<Piece> part_of(Piece const& block, std::uint64_t key) const;
  /// Whether the slices with a piece of the source are those of the domain, no more and no fewer.
  bool source_has_all(std::span<DomainAxis const> domain) const;

 private:
  struct Range {
    std::uint64_t key = 0;
    std::size_t source_begin = 0;
    std::size_t source_end = 0;
    std::size_t target_begin = 0;
    std::size_t target_end = 0;
  };

  std::vector<SliceAxis> axes_;
  std::vector<SlicePiece> source_;
  std::vector<SlicePiece> target_;
  std::vector<Range> slices_;
};

}  // namespace reshard
