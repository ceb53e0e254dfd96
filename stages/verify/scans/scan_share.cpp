#include "stages/verify/scans/scan_share.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "core/base/tables/integers.hpp"

namespace reshard {

std::vector<FileShare> share_of_bytes(std::span<std::uint64_t const> bytes_by_file, int rank,
                                      int ranks) {
  std::uint64_t const total =
      std::accumulate(bytes_by_file.begin(), bytes_by_file.end(), std::uint64_t{0});
  auto const first_of = [&](int r) {
    auto const part = static_cast<std::uint64_t>(r);
    auto const parts = static_cast<std::uint64_t>(ranks);
    return total / parts * part + total % parts * part / parts;
  };
  std::uint64_t const begin = first_of(rank);
  std::uint64_t const end = first_of(rank + 1);
  std::vector<FileShare> shares;
  std::uint64_t at = 0;
  for (std::size_t file = 0; file < bytes_by_file.size(); at += bytes_by_file[file++]) {
    FileShare const share{narrow<std::uint32_t>(file), std::max(begin, at) - at,
                          std::min(end, at + bytes_by_file[file]) - std::min(end, at)};
    if (share.begin < share.end) shares.push_back(share);
  }
  return shares;
}

std::vector<FileShare> share_of_files(std::span<std::uint64_t const> bytes_by_file, int rank,
                                      int ranks, std::vector<bool> const& left_out) {
  std::vector<std::uint32_t> order(bytes_by_file.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return bytes_by_file[a] > bytes_by_file[b];
  });
  using Load = std::pair<std::uint64_t, int>;  // bytes, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int r = 0; r < ranks; ++r) loads.emplace(0, r);
  std::vector<FileShare> shares;
  for (std::uint32_t const file : order) {
    if (!left_out.empty() && left_out[file]) continue;
    auto const [bytes, least] = loads.top();
    loads.pop();
    // Opening takes time, too: files without bytes go round.
    loads.emplace(bytes + bytes_by_file[file] + 1, least);
    if (least == rank) shares.push_back({.file = file});
  }
  std::sort(shares.begin(), shares.end(),
            [](FileShare const& a, FileShare const& b) { return a.file < b.file; });
  return shares;
}

std::vector<FileShare> lane_of_bytes(std::span<FileShare const> mine, int lane, int lanes) {
  std::vector<std::uint64_t> bytes;
  for (FileShare const& share : mine) bytes.push_back(share.end - share.begin);
  std::vector<FileShare> shares = share_of_bytes(bytes, lane, lanes);
  for (FileShare& share : shares) {
    FileShare const& whole = mine[share.file];
    share = {whole.file, whole.begin + share.begin, whole.begin + share.end};
  }
  return shares;
}

std::vector<FileShare> lane_of_files(std::span<FileShare const> mine,
                                     std::span<std::uint64_t const> bytes_by_file, int lane,
                                     int lanes) {
  std::vector<std::uint64_t> bytes;
  for (FileShare const& share : mine) bytes.push_back(bytes_by_file[share.file]);
  std::vector<FileShare> shares = share_of_files(bytes, lane, lanes);
  for (FileShare& share : shares) share = mine[share.file];
  return shares;
}

}  // namespace reshard
