#pragma once

#include <map>
#include <span>
#include <vector>

#include "core/plan/views/source_view.hpp"
#include "stages/read/factor_tiles.hpp"

namespace reshard {

/// Adds the product of an adapter to stored weights (ViewKind::merge): the same bits for every
/// division of a tensor into ranges. Used by one thread.
class WeightMerger {
 public:
  /// `tiles` must outlive this object; others may use them as well.
  explicit WeightMerger(FactorTiles& tiles) : tiles_(tiles) {}

  /// `weights`: the stored elements of the view from `first` on, which become merged ones. The view
  /// must outlive this object. An Error of kind source if a finite weight becomes infinite or NaN.
  void merge(SourceView const& view, Index first, std::span<std::byte> weights);

 private:
  void merge(LowRankPair const& pair, MergedBlock const& block, SourceView const& view,
             std::byte* at);
  /// Factors of the rows [first, first + count) of a pair's sums: magnitude / length.
  std::span<float const> factors(LowRankPair const& pair, Index first, Index count);
  void find_factors(LowRankPair const& pair, Index row, std::vector<float>& to);

  FactorTiles& tiles_;
  std::vector<float> products_;
  std::vector<float> sums_;                                   ///< of rows whose lengths are found
  std::map<LowRankPair const*, std::vector<float>> factors_;  ///< NaN: not found yet
  std::size_t held_factors_ = 0;
};

}  // namespace reshard
