#include "core/formats/deepspeed/flat_parts.hpp"

#include <algorithm>
#include <numeric>

#include "core/base/error.hpp"

namespace reshard::deepspeed {
namespace {

/// Vectors begin at multiples of this many elements on each rank (NCCL wants 4 bytes in FP16).
constexpr Index alignment = 2;

Index divided_up(Index count, Index by) { return count / by + (count % by == 0 ? 0 : 1); }

}  // namespace

std::vector<std::vector<FlatPart>> joined_parts(std::span<Index const> elements, Index ranks) {
  RESHARD_EXPECT(ranks > 0);
  Index const all = std::accumulate(elements.begin(), elements.end(), Index{0});
  Index const part = divided_up(all, alignment * ranks) * alignment;
  std::vector<std::vector<FlatPart>> result(static_cast<std::size_t>(ranks));
  Index at = 0;
  for (std::size_t p = 0; p < elements.size(); ++p) {
    for (Index done = 0; done < elements[p];) {
      Index const rank = (at + done) / part;
      Index const end = std::min(elements[p], (rank + 1) * part - at);
      result[static_cast<std::size_t>(rank)].push_back({p, done, end, at + done - rank * part});
      done = end;
    }
    at += elements[p];
  }
  return result;
}

std::vector<std::vector<FlatPart>> split_parts(std::span<Index const> elements, Index ranks) {
  RESHARD_EXPECT(ranks > 0);
  std::vector<std::vector<FlatPart>> result(static_cast<std::size_t>(ranks));
  Index at = 0;
  for (std::size_t p = 0; p < elements.size(); ++p) {
    Index const piece = divided_up(elements[p], ranks);
    for (Index rank = 0; rank * piece < elements[p]; ++rank)
      result[static_cast<std::size_t>(rank)].push_back(
          {p, rank * piece, std::min(elements[p], (rank + 1) * piece), at});
    at += piece;
  }
  return result;
}

Index split_size(std::span<Index const> elements, Index ranks) {
  Index size = 0;
  for (Index const count : elements) size += divided_up(count, ranks);
  return size;
}

}  // namespace reshard::deepspeed
