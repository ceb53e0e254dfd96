#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/layout/pieces/join.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// The part of a piece in one slice, without the digits common to the slice. Internal to this
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
  std::vector<SlicePiece> source;
  std::vector<SlicePiece> target;  ///< by place in their files
};

/// A table by number, for consecutive numbers from 0 on.
template <class Value>
class ByNumber {
 public:
  struct Entry {
    std::uint32_t number = 0;
    Value value;
  };
  void add(std::uint32_t number) {
    if (number >= places_.size()) places_.resize(number + 1, none);
    if (places_[number] != none) return;
    places_[number] = static_cast<std::uint32_t>(entries_.size());
    entries_.push_back({number, {}});
  }
  /// Pre: the number was added.
  Value const& operator[](std::uint32_t number) const { return entries_[places_[number]].value; }
  std::vector<Entry>& entries() { return entries_; }
  std::vector<Entry> const& entries() const { return entries_; }

 private:
  static constexpr std::uint32_t none = 0xffffffffU;
  std::vector<std::uint32_t> places_;
  std::vector<Entry> entries_;
};

/// The form of an axis in the pieces of one side.
enum class AxisForm {
  one_index,  ///< every piece one index, in its frame
  run,        ///< every piece a run of indices, in one digit of its form
  other
};

/// The pieces of one side of a tensor, by slice. A job has hundreds of thousands of them, so each
/// is stored as two numbers.
class SidePieces {
 public:
  struct Entry {
    std::uint32_t key = 0;
    std::uint32_t piece = 0;
  };

  SidePieces(TensorPieces const& pieces, std::span<std::uint32_t const> chosen);
  AxisForm form_of(AxisId axis, Index size) const;
  /// Cuts the pieces; those of a slice stay in order.
  void cut(std::span<SliceAxis const> axes, std::span<std::uint32_t const> chosen);
  std::vector<Entry> const& entries() const { return entries_; }  ///< sorted by key
  SlicePiece piece(Entry const& entry) const;

 private:
  struct Frame {
    std::uint64_t key = 0;
    std::uint32_t rest = 0;
  };
  /// A digit that goes through several slices.
  struct KeyRun {
    SliceAxis axis;
    PieceDigit digit;
  };
  struct Form {
    std::vector<KeyRun> runs;
    std::uint32_t rest = 0;
  };

  void spread(std::span<KeyRun const> runs, std::uint64_t key, std::uint32_t piece);
  void sort();

  TensorPieces const& pieces_;
  ByNumber<Frame> frames_;
  ByNumber<Form> forms_;
  std::vector<Entry> entries_;
};

/// A logical tensor cut into slices: one for each combination of the indices in names of stored
/// tensors on at least one side (each expert of each layer). Most slices of a tensor differ only in
/// the places of their pieces, so that few of them have to be joined. A tensor without such indices
/// is one slice.
class TensorSlices {
 public:
  /// `chosen` are the pieces of the source that are read. Every slice has one part or none of each
  /// of `blocks` (part_of()). All but `chosen` and `blocks` must outlive this.
  TensorSlices(AxisTable const& axes, std::span<DomainAxis const> domain,
               TensorPieces const& source, std::span<std::uint32_t const> chosen,
               TensorPieces const& target, Catalog const& target_catalog,
               std::span<Piece const> blocks);

  std::size_t size() const { return slices_.size(); }
  /// The number of pieces of all slices, on both sides.
  std::size_t pieces() const { return source_.entries().size() + target_.entries().size(); }
  Slice operator[](std::size_t number) const {
    Slice slice;
    make(number, slice);
    return slice;
  }
  /// operator[] in the memory of another slice.
  void make(std::size_t number, Slice& slice) const;

  /// Whether the axis is the same throughout a slice.
  bool is_cut(AxisId axis) const;
  /// The part of a block in a slice, without the digits of the axes that are cut; nullopt if there
  /// is none.
  std::optional<Piece> part_of(Piece const& block, std::uint64_t key) const;
  /// Whether the slices with a piece of the source are exactly those of the domain.
  bool source_has_all(std::span<DomainAxis const> domain) const;

 private:
  struct Range {
    std::uint32_t key = 0;
    std::uint32_t source_begin = 0;
    std::uint32_t source_end = 0;
    std::uint32_t target_begin = 0;
    std::uint32_t target_end = 0;
  };

  TensorPieces const& target_pieces_;
  Catalog const& target_catalog_;
  std::vector<SliceAxis> axes_;
  SidePieces source_;
  SidePieces target_;
  std::vector<Range> slices_;
};

}  // namespace reshard
