#pragma once

#include <cstdint>

namespace reshard {

/// The offsets of tensor payloads in a file that is to be written.
enum class DataLayout {
  usual,      ///< where the libraries of the format put them
  as_given,   ///< in the order in which the tensors are given
  for_clones  ///< those of large tensors at multiples of clone_block_bytes, so that a file system
              ///< can share them with another checkpoint
};

/// Blocks of file systems that share extents: 4096 on Btrfs, and on XFS unless it was made
/// otherwise.
inline constexpr std::uint64_t clone_block_bytes = 4096;
/// Fewer bytes are copied faster than they are cloned (a call takes about as long as to copy them).
inline constexpr std::uint64_t least_clone_bytes = std::uint64_t{64} << 10;

}  // namespace reshard
