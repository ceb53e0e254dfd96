#include "core/plan/cells/cell_cuts.hpp"

#include <algorithm>
#include <map>

#include "core/plan/compile.hpp"

namespace reshard {
namespace {

/// From the first to the last byte of a region in its target file.
FileSpan reach_of(Plan const& plan, Region const& region) {
  std::uint64_t end = region.dst_offset_bytes + region.run_bytes;
  for (ByteDim const& dim : plan.dims_of(region))
    end += (dim.count - 1) * static_cast<std::uint64_t>(dim.to_stride);
  return {region.to, region.dst_offset_bytes, end};
}

/// Whether two cells write between each other's bytes in some file.
bool interleaved(Plan const& plan, Cell const& a, Cell const& b) {
  std::map<std::uint32_t, FileSpan> reach;
  for (Region const& region : plan.regions_of(a)) {
    FileSpan const span = reach_of(plan, region);
    auto const known = reach.try_emplace(span.file, span).first;
    known->second.begin = std::min(known->second.begin, span.begin);
    known->second.end = std::max(known->second.end, span.end);
  }
  return std::ranges::any_of(plan.regions_of(b), [&](Region const& region) {
    FileSpan const span = reach_of(plan, region);
    auto const known = reach.find(span.file);
    return known != reach.end() && span.begin < known->second.end && span.end > known->second.begin;
  });
}

class CutSearch {
 public:
  CutSearch(Plan const& plan, CellRange cells, std::size_t parts)
      : plan_(plan), cells_(cells), parts_(parts), before_(cells.size() + 1, 0) {
    for (std::size_t i = 0; i < cells.size(); ++i)
      before_[i + 1] = before_[i] + weight_of(plan.cells[cells.begin + i]);
  }

  /// The first cell of a part, counted from the first of all.
  std::size_t cut_before(std::size_t number) const {
    std::size_t const at = first_from(share(number));
    if (is_clean(at)) return at;
    // Ranges of neighbouring cuts do not overlap, so cuts stay in order.
    std::uint64_t const slack = share(1) / 8;
    std::size_t const low = first_from(share(number) - std::min(slack, share(number)));
    std::size_t const high = first_from(share(number) + slack + 1);
    for (std::size_t step = 1; step <= std::max(at - low, high - std::min(at, high)); ++step) {
      if (at + step < high && is_clean(at + step)) return at + step;
      if (at >= low + step && is_clean(at - step)) return at - step;
    }
    return at;
  }

 private:
  /// A cell belongs to the part in whose share of the weight its first byte falls.
  std::uint64_t share(std::size_t number) const {
    return static_cast<std::uint64_t>(static_cast<double>(before_.back()) *
                                      static_cast<double>(number) / static_cast<double>(parts_));
  }
  std::size_t first_from(std::uint64_t weight) const {
    auto const end = before_.end() - 1;
    return static_cast<std::size_t>(std::lower_bound(before_.begin(), end, weight) -
                                    before_.begin());
  }
  bool is_clean(std::size_t cut) const {
    return cut == 0 || cut >= cells_.size() || !is_cut_between_bytes(plan_, cells_.begin + cut);
  }

  Plan const& plan_;
  CellRange cells_;
  std::size_t parts_;
  std::vector<std::uint64_t> before_;  ///< weight of the cells before each
};

}  // namespace

std::uint64_t weight_of(Plan const& plan, CellRange cells) {
  std::uint64_t weight = 0;
  for (std::size_t i = cells.begin; i < cells.end; ++i) weight += weight_of(plan.cells[i]);
  return weight;
}

std::uint64_t target_bytes_of(Plan const& plan, CellRange cells) {
  std::uint64_t bytes = 0;
  for (std::size_t i = cells.begin; i < cells.end; ++i) bytes += plan.cells[i].target_bytes;
  return bytes;
}

bool is_cut_between_bytes(Plan const& plan, std::size_t cell) {
  return interleaved(plan, plan.cells[cell - 1], plan.cells[cell]);
}

std::vector<std::size_t> cut_cells(Plan const& plan, CellRange cells, std::size_t parts) {
  CutSearch const search(plan, cells, parts);
  std::vector<std::size_t> cuts;
  for (std::size_t part = 0; part < parts; ++part)
    cuts.push_back(cells.begin + search.cut_before(part));
  cuts.push_back(cells.end);
  return cuts;
}

}  // namespace reshard
