#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/io/file_set.hpp"
#include "core/plan/views/source_view.hpp"
#include "stages/read/gatherer.hpp"
#include "stages/read/read_stats.hpp"
#include "stages/read/row_mean.hpp"
#include "stages/read/weight_encoder.hpp"
#include "stages/read/weight_merger.hpp"

namespace reshard {

/// Called with the stored bytes of views as they are read.
using StoredBytesObserver = std::function<void(std::uint32_t file, std::uint64_t offset_bytes,
                                               std::span<std::byte const> bytes)>;

/// Computes parts of views from the stored tensors that they need, slice by slice: at most about a
/// MiB of codes or elements is in memory at a time, with its scales and zero points. These are read
/// ahead, because neighbouring slices need neighbours. Used by one thread.
class ViewReader {
 public:
  /// `files`, `views`, `stats`, `tiles`, those of adapters, and `scales` outlive the reader; files
  /// of views count in `files`. `observer` may be empty.
  ViewReader(FileSet& files, std::span<SourceView const> views, ReadStats& stats,
             FactorTiles& tiles, KeptScales& scales, StoredBytesObserver observer = {})
      : files_(files),
        views_(views),
        stats_(stats),
        observer_(std::move(observer)),
        merger_(tiles),
        gatherer_([this](std::uint32_t file, std::uint64_t offset_bytes,
                         std::span<iovec const> parts) { read_parts(file, offset_bytes, parts); }),
        encoder_(gatherer_, scales),
        row_mean_([this](std::uint32_t file, std::uint64_t offset_bytes,
                         std::span<iovec const> parts) { read_parts(file, offset_bytes, parts); }) {
  }
  ViewReader(ViewReader const&) = delete;
  ViewReader& operator=(ViewReader const&) = delete;

  /// Fills `into` with the bytes of the computed tensor from `offset_bytes` on. Pre: both are
  /// multiples of the element size.
  void read(std::size_t view, std::uint64_t offset_bytes, std::span<std::byte> into);
  /// Frees the data read ahead of a quantised tensor.
  void forget() { opened_.reset(); }

 private:
  /// A part of one of the tensors other than the codes.
  struct Window {
    quant::FlatRange range;
    std::vector<std::byte> bytes;
  };
  /// The view that was read last, with its data read ahead.
  struct Opened {
    std::size_t view = 0;
    quant::Dequantiser decoder;
    Window scales;
    Window seconds;
    Window zero_points;
    Window groups;
    Window factors;
  };

  void convert(SourceView const& view, Index first, Index count, std::byte* into);
  void average(SourceView const& view, Index first, Index count, std::byte* into);
  /// An Error where an infinite sum has finite terms.
  void check_infinite(SourceView const& view, Index element);
  /// Elements of a stored tensor as F32; `first` is the first one.
  void read_f32(StoredPlace const& place, Index first, std::span<float> into);
  void merge(SourceView const& view, Index first, Index count, std::byte* into);
  void dequantise(std::size_t number, Index first, Index count, std::byte* into);
  /// An Error where a group has no scale.
  void check_groups(SourceView const& view, std::span<std::byte const> groups);
  void run_part(SourceView const& view, quant::RowPart const& part, std::span<std::byte> into);
  std::span<std::byte const> taken(std::optional<StoredPlace> const& place,
                                   quant::FlatRange const& range, Window& window);
  void gather(std::size_t number, Index first, Index count, std::byte* into);
  void read_parts(std::uint32_t file, std::uint64_t offset_bytes, std::span<iovec const> parts);
  void read_bytes(StoredPlace const& place, std::uint64_t offset_bytes, std::span<std::byte> into);

  FileSet& files_;
  std::span<SourceView const> views_;
  ReadStats& stats_;
  StoredBytesObserver observer_;
  std::vector<std::byte> slice_;
  std::vector<float> sums_;   ///< of a mean
  std::vector<float> terms_;  ///< one tensor's elements of it
  std::optional<Opened> opened_;
  WeightMerger merger_;
  Gatherer gatherer_;
  WeightEncoder encoder_;
  RowMean row_mean_;
};

}  // namespace reshard
