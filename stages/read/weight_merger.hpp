#pragma once

#include <span>
#include <vector>

#include "core/plan/source_view.hpp"
#include "stages/read/factor_tiles.hpp"

namespace reshard {

/// Adds to stored weights what an adapter adds to them (ViewKind::merge): the same bits for every
/// division of a tensor into stretches. Used by one thread.
class WeightMerger {
 public:
  /// `tiles` outlive this; others may use them as well.
  explicit WeightMerger(FactorTiles& tiles) : tiles_(tiles) {}

  /// `weights`: the stored elements of the view from `first` on, which become merged ones. The view
  /// outlives this. An Error of kind source where a finite weight becomes infinite or no number.
  void merge(SourceView const& view, Index first, std::span<std::byte> weights);

 private:
  void merge(LowRankPair const& pair, MergedBlock const& block, SourceView const& view,
             std::byte* at);

  FactorTiles& tiles_;
  std::vector<float> products_;
};

}  // namespace reshard
