#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file_range.hpp"

namespace reshard::zip {

/// One record of a zip archive, stored as it is.
struct Entry {
  std::string name;
  std::uint64_t header_offset_bytes = 0;
  std::uint64_t payload_offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t listed_offset_bytes = 0;  ///< of its entry in the directory
  std::uint32_t crc32 = 0;
  std::uint16_t flags = 0;
};

/// The place of the central directory, from the end records.
struct DirectoryPlace {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t entries = 0;
};

/// The offsets of end records in the last bytes of a file (as many as an end record and a comment
/// can have): those whose comment ends with the file.
std::vector<std::size_t> end_records(std::span<std::byte const> tail);

/// Reads the end records: exactly one, at the very end, directly after the directory.
DirectoryPlace find_directory(FileRange const& file);

/// All records, by offset in the file. No payload is read.
///
/// Ambiguous archives, which readers could interpret differently, are an Error of kind source: a
/// local header that contradicts the directory, overlaps, gaps, two records of one name, two end
/// records. So are compression, encryption, archives of several parts, and names that leave the
/// archive's folder.
std::vector<Entry> read_directory(FileRange const& file);

}  // namespace reshard::zip
