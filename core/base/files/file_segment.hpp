#pragma once

#include <cstdint>
#include <string>

namespace reshard {

/// Bytes and their offset in a file.
struct FileSegment {
  std::uint64_t offset_bytes = 0;
  std::string bytes;
  friend bool operator==(FileSegment const&, FileSegment const&) = default;
};

}  // namespace reshard
