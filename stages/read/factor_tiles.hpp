#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/io/file_set.hpp"
#include "core/plan/views/merged_weight.hpp"
#include "core/quant/low_rank.hpp"
#include "stages/read/read_stats.hpp"

namespace reshard {

/// Neighbouring rows of a factor in F32, [rows, rank], as rows or as columns of a product.
struct FactorTile {
  Index first = 0;  ///< row
  Index rows = 0;
  std::vector<float> values;  ///< of a tile by rows
  quant::Panels panels;       ///< of a tile by columns
};

enum class TileForm { rows, columns };

/// Tiles of the factors of adapters, read from files on request. The most recently used ones are
/// cached, up to a number of bytes; in memory are these, at most one more, and those that callers
/// hold. Used by several threads at once; `files` and `stats` while a tile is loaded.
class FactorTiles {
 public:
  static constexpr std::size_t default_held_bytes = std::size_t{64} << 20U;

  /// `files` and `stats` outlive this.
  FactorTiles(FileSet& files, ReadStats& stats, std::size_t held_bytes = default_held_bytes)
      : files_(files), stats_(stats), most_bytes_(held_bytes) {}

  /// The tile that contains a row of a factor. The factor must outlive this object.
  std::shared_ptr<FactorTile const> tile(Factor const& factor, Index rank, Index row,
                                         TileForm form);
  /// The most bytes that were cached at a time.
  std::size_t peak_bytes() const { return peak_bytes_; }

 private:
  using Key = std::pair<Factor const*, std::pair<Index, TileForm>>;
  struct Held {
    std::shared_ptr<FactorTile const> tile;
    std::size_t bytes = 0;
    std::list<Key>::iterator place;
  };
  std::shared_ptr<FactorTile const> load(Factor const& factor, Index rank, Index first, Index rows,
                                         TileForm form);
  void hold(Key const& key, std::shared_ptr<FactorTile const> tile, std::size_t bytes);

  std::mutex mutex_;
  FileSet& files_;
  ReadStats& stats_;
  std::size_t most_bytes_;
  std::size_t held_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
  std::list<Key> recent_;  ///< most recently used first
  std::map<Key, Held> held_;
};

}  // namespace reshard
