#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/plan/views/source_view.hpp"
#include "stages/read/gatherer.hpp"

namespace reshard {

/// Rows that are alike (ViewKind::rows): zeros, or the mean of the rows of a gathered tensor. These
/// are read in bands of about a MiB and summed in F64 in their order, so that the mean is the same
/// for every layout and number of ranks. The last mean is kept. Used by one thread.
class RowMean {
 public:
  explicit RowMean(Gatherer::ReadParts read) : gatherer_(std::move(read)) {}

  /// The elements [first, first + count) of a view. Returns the sum's first value that its dtype
  /// has no place for; nothing where there is none.
  std::optional<quant::Inexact> fill(SourceView const& view, Index first, Index count,
                                     std::byte* into);

 private:
  std::optional<quant::Inexact> make(SourceView const& view, Index columns);

  Gatherer gatherer_;
  GatheredTensor const* tensor_ = nullptr;  ///< of `row_`
  DType dtype_ = DType::f32;
  std::vector<std::byte> row_;
  std::vector<std::byte> band_;
  std::vector<float> values_;
  std::vector<double> sums_;
};

}  // namespace reshard
