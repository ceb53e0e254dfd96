#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "core/base/dtype.hpp"

namespace reshard::quant {

/// Whether convert() can read and write these dtypes: F64, F32, BF16 and F16 both ways, F8_E4M3 and
/// F8_E5M2 as stored ones.
bool convertible(DType stored, DType wanted);

/// An element whose new value the wanted dtype does not have.
struct Inexact {
  std::size_t element = 0;
  double value = 0;
};

/// Elements of dtype `stored`, each increased by `constant`, as elements of dtype `wanted`. Nothing
/// is rounded: the first element whose sum `wanted` cannot hold ends the work and is returned. With
/// constant 0 every code keeps its value, the sign of a zero and the payload of a NaN included;
/// with another one infinities and NaNs stay as they are.
///
///   BF16 1.0 + -1 is 0.0; BF16 2^-8 + 1 is inexact in BF16 and exact in F32
///
/// Pre: convertible(stored, wanted); both spans have the same whole number of elements. They may
/// lie at any address.
std::optional<Inexact> convert(DType stored, std::span<std::byte const> from, double constant,
                               DType wanted, std::span<std::byte> to);

/// F32 values as BF16 or F16, each rounded to the nearest, of two the even one (rounded.hpp). Pre:
/// `wanted` is one of the two; `to` has half the bytes of `from`. They may lie at any address.
void round_values(std::span<std::byte const> from, DType wanted, std::span<std::byte> to);

}  // namespace reshard::quant
