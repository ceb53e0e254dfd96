#include "stages/read/factor_tiles.hpp"

#include <algorithm>
#include <span>

namespace reshard {
namespace {

constexpr Index tile_values = Index{1} << 18;
constexpr Index most_tile_rows = 4096;
/// The bytes of one read: fewer if only a small share of them is wanted.
constexpr Index dense_read_bytes = Index{4} << 20;
constexpr Index sparse_read_bytes = Index{64} << 10;
constexpr Index sparse_share = 8;

Index tile_rows(Index rank) {
  Index const rows = tile_values / std::max<Index>(rank, 1) / quant::panel_columns;
  return std::clamp<Index>(rows * quant::panel_columns, quant::panel_columns, most_tile_rows);
}

Index element_bytes(DType dtype) { return bits(dtype) / 8; }

/// Reads the rows [first, end) of one part of a factor into values [end - first, rank].
class PartLoader {
 public:
  PartLoader(FileSet& files, ReadStats& stats, FactorPart const& part, Index rank, Index first,
             Index end, std::span<float> to)
      : files_(files), stats_(stats), part_(part), rank_(rank), first_(first), end_(end), to_(to) {}

  void run() {
    std::vector<FactorDim> dims = part_.dims;
    std::ranges::stable_sort(dims, std::greater{}, &FactorDim::step);
    clip(dims, 0, {});
  }

 private:
  struct At {
    Index offset = 0;  ///< elements from the part's first
    Index row = 0;     ///< the same
    Index rank = 0;
    At moved(FactorDim const& dim, Index steps) const {
      return {offset + steps * dim.stride, row + steps * dim.step, rank + steps * dim.rank_step};
    }
  };

  /// Cuts dimension after dimension to the rows asked for, until all the rest is wanted.
  void clip(std::span<FactorDim const> dims, std::size_t d, At const& at) {
    Index reach = 0;
    for (FactorDim const& dim : dims.subspan(d)) reach += (dim.count - 1) * dim.step;
    Index const row = part_.row + at.row;
    if (row >= end_ || row + reach < first_) return;
    if (row >= first_ && row + reach < end_) {
      std::vector<FactorDim> box(dims.begin() + static_cast<std::ptrdiff_t>(d), dims.end());
      std::ranges::stable_sort(box, std::greater{}, &FactorDim::stride);
      return read(box, at);
    }
    FactorDim const& dim = dims[d];
    Index const inner = reach - (dim.count - 1) * dim.step;
    // Complete steps in the middle are one box.
    auto const steps_before = [&](Index bound) {
      return std::clamp<Index>((bound - row + dim.step - 1) / dim.step, 0, dim.count);
    };
    Index const whole = steps_before(first_);
    Index const whole_end = std::max(whole, steps_before(end_ - inner));
    for (Index i = 0; i < whole; ++i) clip(dims, d + 1, at.moved(dim, i));
    if (whole < whole_end) {
      std::vector<FactorDim> middle(dims.begin(), dims.end());
      middle[d].count = whole_end - whole;
      clip(middle, d, at.moved(dim, whole));
    }
    for (Index i = whole_end; i < dim.count; ++i) clip(dims, d + 1, at.moved(dim, i));
  }

  /// A box of values, the dimension with the longest stride first.
  void read(std::vector<FactorDim>& dims, At const& at) {
    Index span = 1;
    Index volume = 1;
    for (FactorDim const& dim : dims) {
      span += (dim.count - 1) * dim.stride;
      volume *= dim.count;
    }
    Index const bytes = span * element_bytes(part_.dtype);
    bool const small = volume == 1 || bytes <= sparse_read_bytes;
    if (small || (bytes <= dense_read_bytes && span <= sparse_share * volume)) {
      read_bytes(at.offset, span);
      return scatter(dims, 0, {0, at.row, at.rank});
    }
    halve(dims, at);
  }

  void halve(std::vector<FactorDim> const& dims, At const& at) {
    auto const outer = static_cast<std::size_t>(
        std::ranges::find_if(dims, [](FactorDim const& dim) { return dim.count > 1; }) -
        dims.begin());
    Index const half = dims[outer].count / 2;
    std::vector<FactorDim> part = dims;
    part[outer].count = half;
    read(part, at);
    part = dims;
    part[outer].count -= half;
    read(part, at.moved(dims[outer], half));
  }

  void read_bytes(Index offset, Index elements) {
    Index const size = element_bytes(part_.dtype);
    bytes_.resize(static_cast<std::size_t>(elements * size));
    files_.open(part_.file)
        ->read_at(part_.offset_bytes + static_cast<std::uint64_t>(offset * size), bytes_);
    stats_.bytes += bytes_.size();
    stats_.calls += 1;
  }

  /// `at.offset` counts in the bytes read.
  void scatter(std::span<FactorDim const> dims, std::size_t d, At const& at) {
    std::byte const* const from = bytes_.data() + at.offset * element_bytes(part_.dtype);
    float* const to = to_.data() + (part_.row + at.row - first_) * rank_ + part_.rank + at.rank;
    if (d == dims.size()) return quant::widen(part_.dtype, from, 0, 1, to, 0);
    FactorDim const& dim = dims[d];
    if (d + 1 == dims.size())
      return quant::widen(part_.dtype, from, dim.stride, dim.count, to,
                          dim.step * rank_ + dim.rank_step);
    for (Index i = 0; i < dim.count; ++i) scatter(dims, d + 1, at.moved(dim, i));
  }

  FileSet& files_;
  ReadStats& stats_;
  FactorPart const& part_;
  Index rank_;
  Index first_;
  Index end_;
  std::span<float> to_;
  std::vector<std::byte> bytes_;
};

}  // namespace

std::shared_ptr<FactorTile const> FactorTiles::tile(Factor const& factor, Index rank, Index row,
                                                    TileForm form) {
  std::lock_guard const lock(mutex_);
  Index const rows = tile_rows(rank);
  Key const key{&factor, {row / rows, form}};
  auto const found = held_.find(key);
  if (found != held_.end()) {
    recent_.splice(recent_.begin(), recent_, found->second.place);
    return found->second.tile;
  }
  Index const first = row / rows * rows;
  std::shared_ptr<FactorTile const> loaded =
      load(factor, rank, first, std::min(rows, factor.rows - first), form);
  hold(key, loaded, loaded->values.size() * sizeof(float) + loaded->panels.bytes());
  return loaded;
}

std::shared_ptr<FactorTile const> FactorTiles::load(Factor const& factor, Index rank, Index first,
                                                    Index rows, TileForm form) {
  auto tile = std::make_shared<FactorTile>();
  tile->first = first;
  tile->rows = rows;
  tile->values.resize(static_cast<std::size_t>(rows * rank));
  for (FactorPart const& part : factor.parts)
    PartLoader(files_, stats_, part, rank, first, first + rows, tile->values).run();
  if (form == TileForm::columns) {
    tile->panels = quant::Panels(tile->values, rows, rank);
    tile->values = {};
  }
  return tile;
}

void FactorTiles::hold(Key const& key, std::shared_ptr<FactorTile const> tile, std::size_t bytes) {
  while (!recent_.empty() && held_bytes_ + bytes > most_bytes_) {
    auto const oldest = held_.find(recent_.back());
    held_bytes_ -= oldest->second.bytes;
    held_.erase(oldest);
    recent_.pop_back();
  }
  recent_.push_front(key);
  held_.emplace(key, Held{std::move(tile), bytes, recent_.begin()});
  held_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
}

}  // namespace reshard
