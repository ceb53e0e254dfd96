#pragma once

#include <cstdint>
#include <optional>

namespace reshard {

/// A record of a zip archive with weights of a source. The archive contains the CRC-32 of its
/// bytes.
struct StoredRecord {
  std::uint32_t file = 0;          ///< number among the source's files
  std::uint64_t offset_bytes = 0;  ///< from the start of the file
  std::uint64_t size_bytes = 0;
  std::uint64_t archive_offset_bytes = 0;  ///< the archive is a part of the file, or all of it
  std::uint64_t archive_bytes = 0;
  std::optional<std::uint32_t> crc32;  ///< nullopt: not read with the header
  friend bool operator==(StoredRecord const&, StoredRecord const&) = default;
};

}  // namespace reshard
