#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace reshard {

/// One of several parts of a checkpoint's files.
struct FilePart {
  std::int64_t number = 1;  ///< from 1
  std::int64_t of = 1;
  friend bool operator==(FilePart const&, FilePart const&) = default;
};

/// The part whose turn it is on a day, counted from 1970: all of them in `of` days in a row.
FilePart part_of_day(std::int64_t of, std::int64_t day);

/// "3/30", "auto/30" (part_of_day), or "auto", which is "auto/30". Errors: usage.
FilePart parse_file_part(std::string_view text, std::int64_t day);

/// Which of these files, in this order, are in the part: those whose first byte is in its share of
/// all bytes one after the other. Each file is in exactly one of all parts.
std::vector<bool> files_in(FilePart part, std::span<std::uint64_t const> size_bytes);

}  // namespace reshard
