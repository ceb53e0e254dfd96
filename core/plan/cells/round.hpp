#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/ids.hpp"
#include "core/base/range.hpp"
#include "core/base/tables/byte_dim.hpp"

namespace reshard {

/// Parts of a staging block begin on multiples of this, unless an I/O engine asks for more.
inline constexpr std::uint64_t staging_alignment = 64;
constexpr std::uint64_t staging_aligned(std::uint64_t bytes) {
  return (bytes + staging_alignment - 1) / staging_alignment * staging_alignment;
}

/// The alignment of staging memory for an I/O engine: a long range of a file begins at a staging
/// offset that is congruent to its file offset modulo `io_bytes`, so that blocks of the file are
/// aligned blocks of memory. A power of two; 1: no requirement.
struct StagingAlignment {
  std::uint64_t io_bytes = 1;

  /// The staging offset of a part of `bytes` for the file's bytes from `offset_bytes` on, after
  /// `used` bytes of a block. Pre: used is a multiple of staging_alignment.
  constexpr std::uint64_t place(std::uint64_t used, std::uint64_t offset_bytes,
                                std::uint64_t bytes) const {
    return is_long(bytes) ? used + (offset_bytes - used) % io_bytes : used;
  }
  /// The most staging bytes of such a part.
  constexpr std::uint64_t bound(std::uint64_t bytes) const {
    return staging_aligned(is_long(bytes) ? bytes + io_bytes - 1 : bytes);
  }
  /// The staging offset of a block that contains parts of its own.
  constexpr std::uint64_t block(std::uint64_t used) const {
    return (used + io_bytes - 1) / io_bytes * io_bytes;
  }

 private:
  /// Long enough that the gap between two parts does not matter.
  constexpr bool is_long(std::uint64_t bytes) const { return bytes >= 16 * io_bytes; }
};

/// Bytes [offset_bytes, +bytes) of a file, and their offset in the round's staging memory. `file`
/// counts in the job's list of source files (reads) or target files (writes).
struct Extent {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t at = 0;
  friend bool operator==(Extent const&, Extent const&) = default;
};

/// Bytes [offset_bytes, +bytes) of a target file that are bytes [from_bytes, +bytes) of a source
/// file.
struct CloneExtent {
  std::uint32_t from_file = 0;
  std::uint64_t from_bytes = 0;
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(CloneExtent const&, CloneExtent const&) = default;
};

/// The conditions of clones instead of writes.
struct CloneRules {
  std::uint64_t block_bytes = 0;   ///< of the file system, at least a page; 0: no clones
  std::uint32_t source_files = 0;  ///< higher file numbers are views
};

/// Copies runs of `run_bytes` from staging place `from` to staging place `to`, once for every
/// index tuple of `dims` (outermost first).
struct StridedCopy {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t run_bytes = 0;
  std::vector<ByteDim> dims;
};

/// Zero bytes in staging: padding of the target.
struct ZeroFill {
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
};

/// One flat message with another rank: `bytes` bytes of staging from `at` on. A send is packed by
/// `copies` (from read bytes to the message) before it leaves; a receive is unpacked by `copies`
/// after it has arrived.
struct Message {
  int peer = 0;
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
  std::vector<StridedCopy> copies;
};

/// Runs of `run_bytes` bytes that were read to staging offset `from`, and their place `at` in the
/// row-major bytes of the tensor or object with the digest; `dims` have the strides of both
/// (to_stride: of the latter). Their share is added to the digest, which is of `tensor_bytes`
/// bytes. In the source file they begin at `offset_bytes`, with the strides of staging.
struct DigestPart {
  DigestId digest = DigestId::none;
  std::uint64_t from = 0;
  std::uint64_t at = 0;
  std::uint64_t run_bytes = 0;
  std::vector<ByteDim> dims;
  std::uint64_t tensor_bytes = 0;
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
};

/// The size of a part in bytes.
inline std::uint64_t bytes_of(DigestPart const& part) {
  std::uint64_t bytes = part.run_bytes;
  for (ByteDim const& dim : part.dims) bytes *= dim.count;
  return bytes;
}

/// The share of some bytes in a digest: shares are combined by xor, the numbers of bytes added.
struct DigestShare {
  DigestId digest{};
  std::uint64_t share = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(DigestShare const&, DigestShare const&) = default;
};

/// Cells of a plan.
using CellRange = HalfOpen<std::size_t>;

/// The work of one rank in one round, in one staging block of `staging_bytes`: reads, then digests
/// of the read bytes, fills, local copies and packing, then the exchange, then unpacking, then
/// writes. Several writes may take the same staging bytes (a replicated tensor). Rounds with
/// messages have the same number on every rank.
struct RoundWork {
  std::uint64_t staging_bytes = 0;
  std::vector<Extent> reads;
  std::vector<DigestPart> digests;
  std::vector<ZeroFill> fills;
  std::vector<StridedCopy> copies;
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::vector<Extent> writes;
  /// Parts of the writes that can be cloned instead of being written. By target file and offset.
  std::vector<CloneExtent> clones;
  /// Bytes of the target that the round neither reads nor writes: they are cloned.
  std::vector<CloneExtent> unread;
  std::vector<DigestShare> recorded;  ///< the number of unread bytes of each digest; shares of 0
  CellRange cells = {};               ///< the cells that are complete in the target once this rank
                                      ///< has written
};

}  // namespace reshard
