#include "core/plan/views/raw_views.hpp"

#include <algorithm>
#include <map>

namespace reshard {
namespace {

Index element_bytes(DType dtype) { return bits(dtype) / 8; }

class RawViews {
 public:
  RawViews(RoundWork& work, std::span<SourceView const> views) : work_(work), views_(views) {}

  void replace(Extent const& read, std::uint32_t number) {
    SourceView const& view = views_[number];
    Index const size = element_bytes(view.dtype);
    RESHARD_EXPECT(read.offset_bytes % static_cast<std::uint64_t>(size) == 0 &&
                   read.bytes % static_cast<std::uint64_t>(size) == 0);
    ViewPart part;
    part.view = number;
    part.first = static_cast<Index>(read.offset_bytes) / size;
    part.count = static_cast<Index>(read.bytes) / size;
    part.to = read.at;
    if (view.kind == ViewKind::dequantise) return dequantise(view, part);
    Index const stored_size = element_bytes(view.stored.dtype);
    part.stored = stage(view.stored, part.first * stored_size, part.count * stored_size);
    parts_.push_back(part);
  }

  std::vector<ViewPart> finish(std::vector<Extent> const& others) {
    reads_.insert(reads_.end(), others.begin(), others.end());
    work_.reads = std::move(reads_);
    return std::move(parts_);
  }

 private:
  /// Bytes [offset, +bytes) of a stored tensor, read to a place of their own.
  std::uint64_t stage(StoredPlace const& place, Index offset, Index bytes) {
    std::uint64_t const at = work_.staging_bytes;
    auto const wanted = static_cast<std::uint64_t>(bytes);
    reads_.push_back(
        {place.file, place.offset_bytes + static_cast<std::uint64_t>(offset), wanted, at});
    work_.staging_bytes += staging_aligned(wanted);
    return at;
  }

  std::uint64_t stage(std::optional<StoredPlace> const& place, quant::FlatRange const& elements) {
    if (elements.begin == elements.end) return 0;
    Index const size = element_bytes(place->dtype);
    return stage(*place, elements.begin * size, (elements.end - elements.begin) * size);
  }

  /// Elements of several rows are a part of a row, complete rows, and a part of a row.
  void dequantise(SourceView const& view, ViewPart part) {
    auto found = decoders_.find(part.view);
    if (found == decoders_.end()) found = decoders_.emplace(part.view, dequantiser_of(view)).first;
    quant::Dequantiser const& decoder = found->second;
    Index const columns = decoder.shape().columns;
    for (Index left = part.count; left > 0;) {
      part.rows = quant::leading_part(columns, part.first, left, left, left);
      part.count = part.rows.rows * part.rows.columns;
      quant::Needs const needs = decoder.needs_of(part.rows);
      part.stored =
          stage(view.stored, needs.code_bytes.begin, needs.code_bytes.end - needs.code_bytes.begin);
      part.scales = stage(view.scale, needs.scales);
      part.seconds = stage(view.second, needs.seconds);
      part.zero_points = stage(view.zero_points, needs.zero_points);
      parts_.push_back(part);
      part.first += part.count;
      part.to += static_cast<std::uint64_t>(part.count * element_bytes(view.dtype));
      left -= part.count;
    }
  }

  RoundWork& work_;
  std::span<SourceView const> views_;
  std::map<std::uint32_t, quant::Dequantiser> decoders_;
  std::vector<Extent> reads_;
  std::vector<ViewPart> parts_;
};

}  // namespace

std::vector<ViewPart> stage_raw_views(RoundWork& work, std::span<SourceView const> views,
                                      std::uint32_t first_view_file) {
  auto const is_raw = [&](Extent const& read) {
    return read.file >= first_view_file && !only_on_host(views[read.file - first_view_file]);
  };
  if (std::none_of(work.reads.begin(), work.reads.end(), is_raw)) return {};
  RawViews raw(work, views);
  std::vector<Extent> others;
  for (Extent const& read : work.reads) {
    if (is_raw(read))
      raw.replace(read, read.file - first_view_file);
    else
      others.push_back(read);
  }
  return raw.finish(others);
}

double staging_growth(std::span<SourceView const> views) {
  double growth = 1;
  for (SourceView const& view : views) {
    if (only_on_host(view)) continue;
    // Codes take half of their BF16 values at most; scales and zero points of small blocks take at
    // most as much.
    double const more =
        view.kind == ViewKind::dequantise
            ? 1.5
            : static_cast<double>(bits(view.stored.dtype)) / static_cast<double>(bits(view.dtype));
    growth = std::max(growth, 1 + more);
  }
  return growth;
}

}  // namespace reshard
