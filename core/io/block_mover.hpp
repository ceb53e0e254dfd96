#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace reshard {

/// What became of a transfer: so many bytes from its first on. Where these are not all, `error` is
/// the errno that ended it, or 0 (the end of the file, or a short transfer).
struct MovedBytes {
  std::size_t bytes = 0;
  int error = 0;
};

/// Moves a stretch of a file to or from memory with system calls. Calls may come from any thread.
class BlockMover {
 public:
  virtual ~BlockMover() = default;
  virtual MovedBytes read(int descriptor, std::uint64_t offset_bytes,
                          std::span<std::byte> into) = 0;
  virtual MovedBytes write(int descriptor, std::uint64_t offset_bytes,
                           std::span<std::byte const> bytes) = 0;
  /// Why it moves bytes by pread and pwrite although it has another way; "" where it has none, or
  /// goes it.
  virtual std::string fallback() const { return ""; }
};

/// pread and pwrite, one call after the other. `fallback` is what it says of itself.
std::unique_ptr<BlockMover> call_mover(std::string fallback = "");

/// io_uring: a stretch is cut into pieces, many of which are under way at a time. Where the system
/// has no io_uring for this process, or the program was built without it, as call_mover().
std::unique_ptr<BlockMover> uring_mover();

}  // namespace reshard
