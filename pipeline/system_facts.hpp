#pragma once

#include <cstdint>
#include <filesystem>

namespace reshard {

/// A file as it was at some time: when two stamps differ, somebody has changed it in between.
struct FileStamp {
  std::int64_t bytes = 0;
  std::int64_t mtime_ns = 0;
  std::uint64_t inode = 0;
  friend bool operator==(FileStamp const&, FileStamp const&) = default;
};

/// Error: io when the file has gone.
FileStamp stamp_of(std::filesystem::path const& path);

/// What may be written at a path, or above it where it does not exist yet; 0 when that cannot be found out.
std::uint64_t free_bytes_at(std::filesystem::path path);

/// Resident memory at its highest, of this program alone (getrusage would count what the launcher held before it).
std::uint64_t peak_resident_bytes();

}  // namespace reshard
