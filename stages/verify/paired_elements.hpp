#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/layout/pieces/join.hpp"
#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "stages/verify/replica_check.hpp"

namespace reshard {

/// Elements of files, read in windows, for access in the order of the file.
class ElementWindows {
 public:
  explicit ElementWindows(CatalogReader const& read) : read_(read) {}

  /// The element at `place` of a blob whose last element is before `end_bytes` of its file. Valid
  /// until the next call.
  std::byte const* at(Blob const& blob, Index place, std::uint64_t bytes, std::uint64_t end_bytes);

 private:
  using Key = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;
  std::vector<std::byte>& window_of(Blob const& blob, std::uint64_t window,
                                    std::uint64_t end_bytes);

  CatalogReader const& read_;
  std::map<Key, std::vector<std::byte>> windows_;
  Key last_{0, 0, ~std::uint64_t{0}};
  std::vector<std::byte>* last_window_ = nullptr;
};

/// Pieces of a tensor, and the size of their elements: at most 16 bytes, a power of two.
struct ElementSide {
  std::span<Piece const> pieces;
  std::span<std::uint32_t const> blobs;  ///< of the catalogue, by piece
  std::uint64_t element_bytes = 0;
};

/// The elements common to two lists of pieces of one tensor, one by one. The reader and the lists
/// of the sides must outlive this object.
class PairedElements {
 public:
  PairedElements(Model const& model, Catalog const& catalog, TensorId tensor, ElementSide const& a,
                 ElementSide const& b, CatalogReader const& read);

  /// Calls `look` for every element, with its bytes on both sides.
  void each(std::function<void(std::byte const* a, std::byte const* b)> const& look);

  /// The current element: its indices along the axes of the tensor, and its blobs.
  std::vector<Index> place() const;
  std::pair<std::uint32_t, std::uint32_t> blobs() const { return blobs_now_; }

 private:
  void walk(std::size_t digit, Index a, Index b);

  Model const& model_;
  Catalog const& catalog_;
  TensorId tensor_;
  ElementSide a_;
  ElementSide b_;
  std::map<std::uint32_t, std::uint64_t> ends_a_;
  std::map<std::uint32_t, std::uint64_t> ends_b_;
  std::uint64_t end_a_ = 0;
  std::uint64_t end_b_ = 0;
  ElementWindows windows_a_;
  ElementWindows windows_b_;
  Join join_;
  std::vector<OverlapDigit> part_;
  std::pair<std::uint32_t, std::uint32_t> blobs_now_;
  std::function<void(std::byte const*, std::byte const*)> const* look_ = nullptr;
};

/// "layer 3, hidden 17", or "[3, 17]" if axes have no names. Pre: an index for each axis.
std::string place_text(Model const& model, TensorId tensor, std::span<Index const> indices);

/// The difference of a piece from another that should be the same.
struct CopyDifference {
  std::uint64_t elements = 0;
  std::uint64_t differing = 0;
  std::vector<Index> first;  ///< indices of the first that differs; empty for none
  std::string values;        ///< "1.5 and 1.25": of the first
};

/// Reads two pieces of a tensor (indices in TensorPieces) and compares their common elements. Pre:
/// one dtype, of at least a byte.
CopyDifference compare_copy(Model const& model, Catalog const& catalog, TensorId tensor,
                            std::uint32_t a, std::uint32_t b, CatalogReader const& read);

}  // namespace reshard
