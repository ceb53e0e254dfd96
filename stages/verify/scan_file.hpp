#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "core/base/file.hpp"

namespace reshard {

/// How the bytes of a file are fetched.
enum class ScanSource {
  cache,   ///< as any program reads
  device,  ///< past the pages in memory, where the file system can do that; else these are given up
           ///< before, as far as they are on the device
};

/// A file that is read from front to back. Errors are of kind io.
class ScanFile {
 public:
  ScanFile(std::filesystem::path const& path, ScanSource source);
  ScanFile(ScanFile const&) = delete;
  ScanFile& operator=(ScanFile const&) = delete;
  ~ScanFile();

  std::uint64_t size_bytes() const { return size_bytes_; }
  /// An Error that names both lengths when the file has fewer bytes.
  void expect_bytes(std::uint64_t needed) const;
  /// Fills `into`. Past the cache go the whole pages of it: offset and memory should be multiples
  /// of scan_page_bytes.
  void read(std::uint64_t offset_bytes, std::span<std::byte> into);

 private:
  [[noreturn]] void fail_short(std::uint64_t size_bytes, std::uint64_t needed) const;
  std::size_t read_directly(std::uint64_t offset_bytes, std::span<std::byte> into);
  void leave_direct();

  File file_;
  std::uint64_t size_bytes_;
  int direct_ = -1;  // a descriptor with O_DIRECT
};

}  // namespace reshard
