#pragma once

#include <cstdint>

#include "core/base/dtype.hpp"
#include "core/base/ids.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard {

/// Rows of a stored tensor after the vocabulary of the job, which reads none of them. They are
/// contiguous in a file of the source.
struct PaddingRows {
  TensorId tensor{};
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  DType dtype = DType::u8;
  Index first_row = 0;  ///< of the complete tensor
  Index rows = 0;
  std::uint64_t row_bytes = 0;
};

}  // namespace reshard
