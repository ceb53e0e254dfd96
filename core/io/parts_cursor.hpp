#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/uio.h>

namespace reshard {

/// The total size of the parts in bytes.
std::uint64_t bytes_of(std::span<iovec const> parts);

/// A walk through the parts of a vectored transfer.
class PartsCursor {
 public:
  /// `parts` outlive the cursor.
  explicit PartsCursor(std::span<iovec const> parts) : parts_(parts) {}

  /// The number of bytes consumed.
  std::uint64_t done_bytes() const { return done_bytes_; }
  /// Consumes `bytes` bytes and returns them as parts, without empty ones. Pre: at least `bytes`
  /// are left.
  std::vector<iovec> take(std::uint64_t bytes);
  /// Consumes the rest.
  std::vector<iovec> rest();
  /// Copies the next from.size() bytes into the parts.
  void fill(std::span<std::byte const> from);
  /// Copies the next to.size() bytes from the parts.
  void gather(std::span<std::byte> to);

 private:
  std::span<iovec const> parts_;
  std::size_t part_ = 0;    // the next byte is in this one
  std::size_t within_ = 0;  // bytes of it that were consumed
  std::uint64_t done_bytes_ = 0;
};

/// A range of a file that is moved in one way.
struct TransferStep {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::byte* memory = nullptr;  ///< of `begin`, for a transfer in place; nullptr: through memory of
                                ///< the engine
  friend bool operator==(TransferStep const&, TransferStep const&) = default;
};

/// Divides a transfer into ranges that can be moved in place and ranges that cannot. In place:
/// complete blocks of `file_bytes` whose memory begins at a multiple of `memory_bytes`, at least
/// `least_bytes` in a row. Steps are contiguous from `offset_bytes` on.
///
///   one part of 10000 bytes at memory 8192 + 96, offset 96, blocks of 4096: [96, 4096) is not in
///   place, [4096, 8192) is, at memory 8192 + 4096, and [8192, 10096) is not
std::vector<TransferStep> transfer_steps(std::uint64_t offset_bytes, std::span<iovec const> parts,
                                         std::uint64_t file_bytes, std::uint64_t memory_bytes,
                                         std::uint64_t least_bytes);

}  // namespace reshard
