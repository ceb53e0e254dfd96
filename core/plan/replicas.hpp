#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/catalog.hpp"

namespace reshard {

/// A hash of the elements that a piece holds, whatever the order of its digits.
std::uint64_t box_hash(Piece const& piece);

/// The pieces of a logical tensor of which no other holds exactly the same elements: of each set of
/// equal pieces (replicated over tp or ep) one is chosen, spread evenly over the files. Declared
/// copies are left out. `dropped` counts the others.
struct Distinct {
  std::span<Piece const>
      pieces;  ///< those of `all` itself when none was left out: `all` must outlive this
  std::span<std::uint32_t const> blobs;
  std::uint64_t dropped = 0;
  std::vector<Piece> own_pieces;
  std::vector<std::uint32_t> own_blobs;
};
Distinct distinct_pieces(TensorPieces const& all, Catalog const& catalog);

/// A piece that distinct_pieces() leaves out, and the one that it takes for it: places in
/// TensorPieces::pieces.
struct Replica {
  std::uint32_t taken = 0;
  std::uint32_t left_out = 0;
  bool declared =
      false;  ///< a declared copy, such as an output layer that is tied to the embedding
};
std::vector<Replica> replicas(TensorPieces const& all, Catalog const& catalog);

}  // namespace reshard
