#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "core/base/dtype.hpp"

namespace reshard {

// Single values, decoded from the definition of their formats: a second arithmetic beside
// core/quant, by which conversions are checked one element at a time.

/// The value of one little-endian element of F64, F32, BF16, F16, F8_E4M3, F8_E5M2 or F8_E8M0, NaN
/// and infinity included; nothing for other dtypes.
std::optional<double> value_of(DType dtype, std::span<std::byte const> element);

/// Whether an element of F64, F32, BF16, F16, F8_E4M3 or F8_E5M2 is the one nearest to a value, of
/// two the even one. A NaN is that of any NaN; infinity of what is half a step or more beyond the
/// largest number.
bool is_nearest(DType dtype, std::span<std::byte const> element, double value);

/// "0.3125 (0xa03e)", or the bytes alone where the dtype has no value.
std::string element_text(DType dtype, std::span<std::byte const> element);

}  // namespace reshard
