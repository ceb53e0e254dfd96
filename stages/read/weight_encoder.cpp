#include "stages/read/weight_encoder.hpp"

#include <algorithm>
#include <cstring>

#include "core/base/error.hpp"

namespace reshard {
namespace {

constexpr Index band_bytes = Index{1} << 20;
constexpr std::size_t most_kept_bytes = std::size_t{32} << 20;

}  // namespace

void KeptScales::put(GatheredTensor const* weight, Index band, std::span<std::byte const> scales) {
  std::lock_guard const lock(mutex_);
  auto const [at, is_new] = held_.try_emplace({weight, band});
  if (!is_new) return;
  at->second.assign(scales.begin(), scales.end());
  order_.push_back(at->first);
  bytes_ += scales.size();
  if (bytes_ <= most_kept_bytes) return;
  // The older half was for scales that others compute, or have computed.
  std::size_t const half = order_.size() / 2;
  for (std::size_t i = 0; i < half; ++i)
    if (auto const old = held_.find(order_[i]); old != held_.end()) {
      bytes_ -= old->second.size();
      held_.erase(old);
    }
  order_.erase(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(half));
}

bool KeptScales::take(GatheredTensor const* weight, Index band, std::vector<std::byte>& scales) {
  std::lock_guard const lock(mutex_);
  auto const at = held_.find({weight, band});
  if (at == held_.end()) return false;
  scales = at->second;
  return true;
}

float KeptScales::largest(void const* joined, std::function<float()> const& find) {
  std::unique_lock lock(mutex_);
  Magnitude& held = magnitudes_[joined];
  lock.unlock();
  std::lock_guard const alone(held.mutex);
  if (!held.value) held.value = find();
  return *held.value;
}

/// An infinity or NaN is none: the run ends with the weight that has it.
float WeightEncoder::largest(SourceView const& view) {
  if (!view.joined) return 0;
  return kept_.largest(view.joined.get(), [&] {
    float most = 0;
    for (auto const& weight : *view.joined) {
      Index const count = checked_volume(weight->shape, ErrorKind::source, "a tensor's shape");
      Index const size = bits(weight->dtype) / 8;
      for (Index first = 0; first < count; first += band_bytes / size) {
        Index const part = std::min(count - first, band_bytes / size);
        weights_.resize(static_cast<std::size_t>(part * size));
        gatherer_.gather(*weight, first, part, weights_.data());
        most = std::max(most, quant::largest_of(weight->dtype, weights_).magnitude);
      }
    }
    return most;
  });
}

float WeightEncoder::second(SourceView const& view) {
  return quant::second_scale(view.encoding, view.gathered->dtype, largest(view));
}

WeightEncoder::Bands WeightEncoder::bands_of(SourceView const& view) {
  GatheredTensor const& weight = *view.gathered;
  Index const columns = weight.columns();
  Index const rows =
      columns == 0 ? 0
                   : checked_volume(weight.shape, ErrorKind::source, "a tensor's shape") / columns;
  Index const block_rows = view.encoding.block_rows;
  Index const block_bytes = std::max<Index>(block_rows * columns * bits(weight.dtype) / 8, 1);
  return {quant::Encoder(view.encoding, weight.dtype, columns), rows,
          block_rows * std::max<Index>(band_bytes / block_bytes, 1)};
}

std::optional<quant::Inexact> WeightEncoder::encode(SourceView const& view, Bands const& bands,
                                                    Index band, std::span<std::byte> codes) {
  GatheredTensor const& weight = *view.gathered;
  Index const columns = weight.columns();
  Index const rows = bands.rows_of(band);
  Index const first = band * bands.band_rows * columns;
  float const most = largest(view);
  weights_.resize(static_cast<std::size_t>(rows * columns * bits(weight.dtype) / 8));
  gatherer_.gather(weight, first, rows * columns, weights_.data());
  Index const block_rows = view.encoding.block_rows;
  scales_.resize(static_cast<std::size_t>((rows + block_rows - 1) / block_rows *
                                          bands.encoder.scale_row_bytes()));
  auto special = bands.encoder.run(rows, weights_, codes, scales_, most);
  if (special) {
    special->element += static_cast<std::size_t>(first);
    return special;
  }
  kept_.put(&weight, band, scales_);
  return std::nullopt;
}

std::optional<quant::Inexact> WeightEncoder::codes(SourceView const& view, Index first, Index count,
                                                   std::byte* into) {
  Bands const bands = bands_of(view);
  Index const size = bits(view.dtype) / 8;
  Index const row_bytes = bands.encoder.code_row_bytes();
  Index const band_bytes = bands.band_rows * row_bytes;
  Index const end = (first + count) * size;
  for (Index at = first * size; at < end;) {
    Index const band = at / band_bytes;
    Index const begin = band * band_bytes;
    Index const bytes = bands.rows_of(band) * row_bytes;
    Index const part = std::min(end, begin + bytes) - at;
    if (part == bytes) {
      if (auto special = encode(view, bands, band, {into, static_cast<std::size_t>(bytes)}))
        return special;
    } else {
      if (weight_ != view.gathered.get() || band_ != band) {
        weight_ = nullptr;
        codes_.resize(static_cast<std::size_t>(bytes));
        if (auto special = encode(view, bands, band, codes_)) return special;
        weight_ = view.gathered.get();
        band_ = band;
      }
      std::memcpy(into, codes_.data() + (at - begin), static_cast<std::size_t>(part));
    }
    into += part;
    at += part;
  }
  return std::nullopt;
}

std::optional<quant::Inexact> WeightEncoder::scales(SourceView const& view, Index first,
                                                    Index count, std::byte* into) {
  Bands const bands = bands_of(view);
  Index const size = bits(view.dtype) / 8;
  Index const band_bytes =
      bands.band_rows / view.encoding.block_rows * bands.encoder.scale_row_bytes();
  Index const end = (first + count) * size;
  std::vector<std::byte> found;
  for (Index at = first * size; at < end;) {
    Index const band = at / band_bytes;
    if (!kept_.take(view.gathered.get(), band, found)) {
      weight_ = nullptr;
      codes_.resize(static_cast<std::size_t>(bands.rows_of(band) * bands.encoder.code_row_bytes()));
      if (auto special = encode(view, bands, band, codes_)) return special;
      found = scales_;
    }
    Index const begin = band * band_bytes;
    Index const part = std::min(end, begin + static_cast<Index>(found.size())) - at;
    std::memcpy(into, found.data() + (at - begin), static_cast<std::size_t>(part));
    into += part;
    at += part;
  }
  return std::nullopt;
}

}  // namespace reshard
