#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace reshard {

/// What one rank checks in one file: of the bytes that blocks need from it, in their order, those
/// in [begin, end) (keep_share()).
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

/// The rank's files, ascending, when none is shared: the largest first, each to the rank that has
/// the fewest bytes so far. Files of `left_out`, where it is not empty, are no one's.
std::vector<FileShare> share_of_files(std::span<std::uint64_t const> bytes_by_file, int rank,
                                      int ranks, std::vector<bool> const& left_out = {});

/// How the threads of a rank share what the rank checks: the part of thread `lane` of `lanes`.
/// Whole files stay whole, and `bytes_by_file` are those of all files then.
std::vector<FileShare> lane_of_bytes(std::span<FileShare const> mine, int lane, int lanes);
std::vector<FileShare> lane_of_files(std::span<FileShare const> mine,
                                     std::span<std::uint64_t const> bytes_by_file, int lane,
                                     int lanes);

}  // namespace reshard
