#pragma once

#include <cstdint>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/layout/pieces/join.hpp"

namespace reshard {

/// An affine part of a gathered tensor: its element `first` is at offset_bytes of a file. The
/// dimensions are outermost first in the tensor, in elements: what those after one reach is less
/// than its step there.
struct GatheredPart {
  std::uint32_t file = 0;  ///< a view too
  std::uint64_t offset_bytes = 0;
  Index first = 0;
  std::vector<CopyDim> dims;
};

/// A tensor whose elements lie in several places of the source. The parts hold each once.
struct GatheredTensor {
  DType dtype = DType::bf16;
  std::vector<Index> shape;
  std::vector<GatheredPart> parts;
  std::vector<std::uint32_t> files;  ///< real ones, ascending: of views, those they are made from

  Index columns() const { return shape.empty() ? 1 : shape.back(); }
};

}  // namespace reshard
