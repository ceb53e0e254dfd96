#include "core/plan/cells/replica_parts.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace reshard {

std::vector<std::span<Region>> by_replicas(std::span<Region> members, std::span<ByteDim const> dims,
                                           std::uint64_t most_target_bytes) {
  auto const bytes_in = [&](Region const& region) {
    return bytes_of(region, dims.subspan(region.first_dim, region.dim_count));
  };
  std::uint64_t bytes = 0;
  for (Region const& region : members) bytes += bytes_in(region);
  if (bytes <= most_target_bytes) return {members};

  // Of the same source bytes, the first region is of replica 0, the second of replica 1, ...
  std::vector<std::pair<std::uint64_t, Region>> numbered;
  for (Region const& region : members) numbered.emplace_back(0, region);
  std::ranges::stable_sort(numbered, {}, [](auto const& one) {
    return std::tuple(one.second.to, one.second.dst_offset_bytes);
  });
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, std::uint64_t> seen;
  std::uint64_t replicas = 0;
  for (auto& [replica, region] : numbered) {
    replica = seen[{region.src_file, region.src_offset_bytes, bytes_in(region)}]++;
    replicas = std::max(replicas, replica + 1);
  }
  std::uint64_t const parts = std::min(replicas, (bytes - 1) / most_target_bytes + 1);
  if (parts == 1) return {members};

  for (auto& [replica, region] : numbered) replica = replica * parts / replicas;  // now the part
  std::ranges::stable_sort(numbered, {}, [](auto const& one) { return one.first; });
  std::vector<std::span<Region>> result;
  for (std::size_t begin = 0, i = 0; i < numbered.size(); ++i) {
    members[i] = numbered[i].second;
    if (i + 1 < numbered.size() && numbered[i + 1].first == numbered[i].first) continue;
    result.push_back(members.subspan(begin, i + 1 - begin));
    begin = i + 1;
  }
  return result;
}

}  // namespace reshard
