#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/plan/views/source_view.hpp"
#include "stages/read/gatherer.hpp"

namespace reshard {

/// Scales of bands of weights that were quantised, until they are asked for: codes and scales of a
/// weight come from one reading of it. At most some tens of MiB; what is not there is computed
/// again. Used by several threads.
class KeptScales {
 public:
  void put(GatheredTensor const* weight, Index band, std::span<std::byte const> scales);
  /// False where they are not there.
  bool take(GatheredTensor const* weight, Index band, std::vector<std::byte>& scales);
  /// The largest magnitude of weights that share a second scale, which `find` computes once.
  float largest(void const* joined, std::function<float()> const& find);

 private:
  struct Magnitude {
    std::mutex mutex;
    std::optional<float> value;
  };
  using Key = std::pair<GatheredTensor const*, Index>;
  std::mutex mutex_;
  std::map<Key, std::vector<std::byte>> held_;
  std::vector<Key> order_;  ///< as they came
  std::size_t bytes_ = 0;
  std::map<void const*, Magnitude> magnitudes_;
};

/// Codes and scales of gathered weights (ViewKind::encode, scales,
/// second), band by band: so many rows of
/// blocks as have about a MiB of weights, at least one. Used by one thread.
class WeightEncoder {
 public:
  /// Both outlive the encoder; others may use the scales as well.
  WeightEncoder(Gatherer& gatherer, KeptScales& scales) : gatherer_(gatherer), kept_(scales) {}

  /// The elements [first, first + count) of a view. A weight that no scale is for is returned, its
  /// element counted in the weight.
  std::optional<quant::Inexact> codes(SourceView const& view, Index first, Index count,
                                      std::byte* into);
  std::optional<quant::Inexact> scales(SourceView const& view, Index first, Index count,
                                       std::byte* into);
  /// The second scale of a view.
  float second(SourceView const& view);

 private:
  float largest(SourceView const& view);
  /// How a view is cut.
  struct Bands {
    quant::Encoder encoder;
    Index rows = 0;  ///< of the weight, in a stack one matrix below the other
    Index band_rows = 0;
    Index rows_of(Index band) const { return std::min(band_rows, rows - band * band_rows); }
  };
  static Bands bands_of(SourceView const& view);
  std::optional<quant::Inexact> encode(SourceView const& view, Bands const& bands, Index band,
                                       std::span<std::byte> codes);

  Gatherer& gatherer_;
  KeptScales& kept_;
  std::vector<std::byte> weights_;
  std::vector<std::byte> scales_;
  std::vector<std::byte> codes_;  ///< of the band below
  GatheredTensor const* weight_ = nullptr;
  Index band_ = 0;
};

}  // namespace reshard
