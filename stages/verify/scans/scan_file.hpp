#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "core/io/file_io.hpp"

namespace reshard {

/// A file that is read from front to back. Errors are of kind io.
class ScanFile {
 public:
  /// `io` outlives it.
  ScanFile(FileIo& io, std::filesystem::path const& path);

  std::uint64_t size_bytes() const { return size_bytes_; }
  /// Throws an Error with both sizes if the file has fewer bytes.
  void expect_bytes(std::uint64_t needed) const;
  /// Fills `into`.
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const;

 private:
  [[noreturn]] void fail_short(std::uint64_t size_bytes, std::uint64_t needed) const;

  std::unique_ptr<IoFile> file_;
  std::uint64_t size_bytes_;
};

}  // namespace reshard
