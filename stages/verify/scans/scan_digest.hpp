#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/tables/byte_dim.hpp"
#include "stages/verify/scans/scan_blocks.hpp"

namespace reshard {

/// Computes the shares of blocks, one after the other.
class BlockDigest {
 public:
  /// strided_digest() of a block of which `from` is the run of index 0. Elements that are
  /// neighbours in the tensor but not in the file (a transposed matrix) are gathered first, which
  /// is several times as fast as one run after the other.
  std::uint64_t share(ScanBlock const& block, std::span<ByteDim const> dims, std::byte const* from);
  /// The contribution of a block to the share of a piece of this kind.
  std::uint64_t share(PieceShare const& piece, ScanBlock const& block,
                      std::span<ByteDim const> dims, std::byte const* from);

 private:
  std::vector<std::byte> packed_;  ///< not larger than the largest block
};

}  // namespace reshard
