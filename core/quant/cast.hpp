#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "core/base/dtype.hpp"
#include "core/quant/convert.hpp"

namespace reshard::quant {

/// Whether cast_values() can read and write these dtypes: F64, F32, BF16 and F16 as stored ones;
/// F32, BF16 and F16 as wanted ones.
bool castable(DType stored, DType wanted);

/// Elements of dtype `stored`, each increased by `constant`, as elements of dtype `wanted`, rounded
/// to the nearest, of two the even one, as PyTorch's Tensor.to() rounds on a CPU: F64 by way of
/// F32. A NaN of BF16 is 0x7fc0, one of F16 sign and 0x7e00; one that becomes F32 is quiet where it
/// was F16, and keeps its payload. With a constant other than 0 the exact sum is rounded once.
///
/// A finite value that would become infinite ends the work: the first one is returned.
///
/// Pre: castable(stored, wanted); both spans have the same whole number of elements. They may lie
/// at any address.
std::optional<Inexact> cast_values(DType stored, std::span<std::byte const> from, double constant,
                                   DType wanted, std::span<std::byte> to);

}  // namespace reshard::quant
