#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace reshard {

/// The result of a transfer: the number of bytes moved, from its first on. If these are not all,
/// `error` is the errno that ended it, or 0 (the end of the file, or a short transfer).
struct MovedBytes {
  std::size_t bytes = 0;
  int error = 0;
};

/// Moves a range of a file to or from memory with system calls. Thread safe.
class BlockMover {
 public:
  virtual ~BlockMover() = default;
  virtual MovedBytes read(int descriptor, std::uint64_t offset_bytes,
                          std::span<std::byte> into) = 0;
  virtual MovedBytes write(int descriptor, std::uint64_t offset_bytes,
                           std::span<std::byte const> bytes) = 0;
  /// The reason for which it uses pread and pwrite instead of its own way; "" if it does not.
  virtual std::string fallback() const { return ""; }
};

/// pread and pwrite, one call after the other. `fallback` is the result of its fallback().
std::unique_ptr<BlockMover> call_mover(std::string fallback = "");

/// io_uring: a range is cut into pieces of 1 MiB, many of which are under way at a time. As
/// call_mover() if the system has no io_uring for this process, or the program was built without
/// it.
std::unique_ptr<BlockMover> uring_mover();

}  // namespace reshard
