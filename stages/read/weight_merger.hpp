#pragma once

#include <span>
#include <vector>

#include "core/plan/source_view.hpp"
#include "stages/read/factor_tiles.hpp"

namespace reshard {

/// Adds to stored weights what an adapter adds to them (ViewKind::merge): the same bits for every
/// division of a tensor into stretches. Holds FactorTiles. Used by one thread.
class WeightMerger {
 public:
  /// `files` and `stats` outlive this.
  WeightMerger(FileSet& files, ReadStats& stats,
               std::size_t held_bytes = FactorTiles::default_held_bytes)
      : tiles_(files, stats, held_bytes) {}

  /// `weights`: the stored elements of the view from `first` on, which become merged ones. The view
  /// outlives this. An Error of kind source where a finite weight becomes infinite or no number.
  void merge(SourceView const& view, Index first, std::span<std::byte> weights);

  std::size_t peak_bytes() const { return tiles_.peak_bytes(); }

 private:
  void merge(LowRankPair const& pair, MergedBlock const& block, SourceView const& view,
             std::byte* at);

  FactorTiles tiles_;
  std::vector<float> products_;
};

}  // namespace reshard
