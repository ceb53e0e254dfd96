#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace reshard {

/// The share of one rank in one file: bytes [begin, end) of those that blocks need from it, in
/// their order (keep_share()).
struct FileShare {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();
  friend bool operator==(FileShare const&, FileShare const&) = default;
};

/// The rank's part of the bytes of all files, by file; ranks have neighbouring parts, so few of
/// them share a file.
std::vector<FileShare> share_of_bytes(std::span<std::uint64_t const> bytes_by_file, int rank,
                                      int ranks);

/// The rank's files, ascending, if none is shared: assigned from the largest on, each to the rank
/// with the fewest bytes so far. Files of `left_out`, unless it is empty, are not assigned.
std::vector<FileShare> share_of_files(std::span<std::uint64_t const> bytes_by_file, int rank,
                                      int ranks, std::vector<bool> const& left_out = {});

/// The part of thread `lane` of `lanes` in the shares of a rank: by bytes, or by complete files,
/// with the `bytes_by_file` of all files.
std::vector<FileShare> lane_of_bytes(std::span<FileShare const> mine, int lane, int lanes);
std::vector<FileShare> lane_of_files(std::span<FileShare const> mine,
                                     std::span<std::uint64_t const> bytes_by_file, int lane,
                                     int lanes);

}  // namespace reshard
