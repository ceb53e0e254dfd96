#include "stages/read/row_mean.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "core/quant/cast.hpp"

namespace reshard {
namespace {

constexpr Index band_bytes = Index{1} << 20;

Index size_of(DType dtype) { return bits(dtype) / 8; }

}  // namespace

std::optional<quant::Inexact> RowMean::make(SourceView const& view, Index columns) {
  GatheredTensor const& tensor = *view.gathered;
  if (tensor_ == &tensor && dtype_ == view.dtype) return std::nullopt;
  Index const rows = tensor.shape.front();
  Index const row_bytes = columns * size_of(tensor.dtype);
  Index const band = std::max<Index>(band_bytes / std::max<Index>(row_bytes, 1), 1);
  sums_.assign(static_cast<std::size_t>(columns), 0);
  for (Index at = 0; at < rows; at += band) {
    Index const elements = std::min(band, rows - at) * columns;
    band_.resize(static_cast<std::size_t>(elements * size_of(tensor.dtype)));
    values_.resize(static_cast<std::size_t>(elements));
    gatherer_.gather(tensor, at * columns, elements, band_.data());
    quant::cast_values(tensor.dtype, band_, 0, DType::f32,
                       std::as_writable_bytes(std::span(values_)));
    for (std::size_t row = 0; row < values_.size(); row += sums_.size())
      for (std::size_t i = 0; i < sums_.size(); ++i)
        sums_[i] += static_cast<double>(values_[row + i]);
  }
  for (double& sum : sums_) sum /= static_cast<double>(rows);
  row_.resize(static_cast<std::size_t>(columns * size_of(view.dtype)));
  auto inexact =
      quant::cast_values(DType::f64, std::as_bytes(std::span(sums_)), 0, view.dtype, row_);
  tensor_ = inexact ? nullptr : &tensor;
  dtype_ = view.dtype;
  return inexact;
}

std::optional<quant::Inexact> RowMean::fill(SourceView const& view, Index first, Index count,
                                            std::byte* into) {
  Index const size = size_of(view.dtype);
  if (!view.gathered) {
    std::memset(into, 0, static_cast<std::size_t>(count * size));
    return std::nullopt;
  }
  Index const columns = view.shape.back();
  if (auto inexact = make(view, columns)) return inexact;
  for (Index done = 0; done < count;) {
    Index const column = (first + done) % columns;
    Index const part = std::min(count - done, columns - column);
    std::memcpy(into + done * size, row_.data() + column * size,
                static_cast<std::size_t>(part * size));
    done += part;
  }
  return std::nullopt;
}

}  // namespace reshard
