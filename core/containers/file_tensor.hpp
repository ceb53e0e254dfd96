#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/tables/shared_shape.hpp"
#include "core/base/text/shared_text.hpp"

namespace reshard {

/// A tensor in a file. Element (i0, i1, …) is at offset_bytes + (sum i_d * strides[d]) * element
/// size.
struct FileTensor {
  SharedText name;
  DType dtype = DType::u8;
  std::vector<Index> shape;
  std::vector<Index> strides;      ///< in elements; empty: row-major
  std::uint64_t offset_bytes = 0;  ///< from the start of the file
  std::uint64_t size_bytes = 0;    ///< bytes of the elements (not of the storage)
};

/// A tensor to be written, without an offset.
struct TensorSpec {
  SharedText name;
  DType dtype = DType::u8;
  SharedShape shape;
};

}  // namespace reshard
