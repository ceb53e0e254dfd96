#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "core/base/error.hpp"

namespace reshard {

/// A count or an index of tensor elements. Byte counts are std::uint64_t, with names that end in
/// `bytes`.
using Index = std::int64_t;

/// a * b; an Error of this kind if the product does not fit. `what` names the quantity.
template <class T>
T checked_mul(T a, T b, ErrorKind kind, std::string_view what) {
  T result{};
  if (__builtin_mul_overflow(a, b, &result))
    fail(kind, "{}: {} x {} does not fit in 64 bits", what, a, b);
  return result;
}

template <class T>
T checked_add(T a, T b, ErrorKind kind, std::string_view what) {
  T result{};
  if (__builtin_add_overflow(a, b, &result))
    fail(kind, "{}: {} + {} does not fit in 64 bits", what, a, b);
  return result;
}

/// The product of a shape read from a file; every extent must be >= 0.
inline Index checked_volume(std::span<Index const> shape, ErrorKind kind, std::string_view what) {
  for (Index const extent : shape)
    if (extent < 0) fail(kind, "{}: a dimension is {}, below zero", what, extent);
  for (Index const extent : shape)
    if (extent == 0) return 0;
  Index volume = 1;
  for (Index const extent : shape) volume = checked_mul(volume, extent, kind, what);
  return volume;
}

/// The number in a narrower integer type; throws (internal) when it does not fit. For MPI, zlib and
/// CUDA counts.
template <class To, class From>
To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  auto const result = static_cast<To>(value);
  if (static_cast<From>(result) != value || ((result < To{}) != (value < From{})))
    broken("narrow", __FILE__, __LINE__);
  return result;
}

}  // namespace reshard
