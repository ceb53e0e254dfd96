#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/equal/digest_work.hpp"

namespace reshard {

/// A part of a region with bytes close together in the file.
struct ScanBlock {
  std::uint64_t begin = 0;  ///< its bytes are within [begin, end) of the file
  std::uint64_t end = 0;
  std::uint64_t from = 0;  ///< of the file: where the run of index 0 begins
  std::uint64_t run_bytes = 0;
  std::uint64_t after_bytes = 0;  ///< of the logical tensor: after the run of index 0
  ShareId share{};
  std::uint32_t first_dim = 0;  ///< in FileBlocks::dims
  std::uint32_t dim_count = 0;
};

/// The blocks of one file, in ascending order of `begin`.
struct FileBlocks {
  std::vector<ScanBlock> blocks;
  std::vector<ByteDim> dims;

  std::span<ByteDim const> dims_of(ScanBlock const& block) const {
    return {dims.data() + block.first_dim, block.dim_count};
  }
};

/// Cuts the regions of one file (their numbers in the work) until no block spans more than
/// `most_bytes` of it. Pre: most_bytes >= 1.
FileBlocks blocks_of(DigestWork const& work, std::span<std::uint32_t const> regions,
                     std::uint64_t most_bytes);

/// Of the bytes of all blocks, counted in their order, keeps the blocks whose first one is in
/// [begin, end).
void keep_share(FileBlocks& blocks, std::uint64_t begin, std::uint64_t end);

}  // namespace reshard
