#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/catalog.hpp"

namespace reshard {

/// The distinct pieces of a logical tensor: of each set of pieces with the same elements
/// (replicated over tp or ep) one is chosen, spread evenly over the files. Declared copies are left
/// out. `dropped` counts the others.
struct Distinct {
  TensorPieces const* all = nullptr;  ///< must outlive this
  std::vector<std::uint32_t> chosen;  ///< places in `all`
  std::uint64_t dropped = 0;

  std::size_t size() const { return chosen.size(); }
  bool empty() const { return chosen.empty(); }
  Piece operator[](std::size_t i) const { return (*all)[chosen[i]]; }
  std::uint32_t blob(std::size_t i) const { return all->blob(chosen[i]); }
  std::vector<std::uint32_t> blobs() const;
  /// The chosen pieces, for join() and tile().
  std::vector<Piece> made() const { return all->made(chosen); }
};
Distinct distinct_pieces(TensorPieces const& all, Catalog const& catalog);

/// A piece that distinct_pieces() leaves out, and the one chosen instead: indices in TensorPieces.
struct Replica {
  std::uint32_t taken = 0;
  std::uint32_t left_out = 0;
  bool declared =
      false;  ///< a declared copy, such as an output layer that is tied to the embedding
};
std::vector<Replica> replicas(TensorPieces const& all, Catalog const& catalog);

}  // namespace reshard
