#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "core/base/dtype.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// An element that differs between the two sides.
struct DifferingElement {
  static constexpr std::uint64_t nowhere = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t place = nowhere;   ///< row-major number in the logical tensor
  std::uint64_t offset_bytes = 0;  ///< in b's file
  std::uint32_t file = 0;          ///< of b
  std::uint32_t blob = 0;          ///< of b
  std::array<std::byte, 16>
      a{};  ///< the element's bytes on both sides, in the dtype of the comparison
  std::array<std::byte, 16> b{};

  bool found() const { return place != nowhere; }
  bool before(DifferingElement const& other) const;
};

/// The largest of some values, and the smallest place that has it.
struct LargestValue {
  double value = 0;
  std::uint64_t place = DifferingElement::nowhere;

  void take(LargestValue const& other);
};

/// A histogram of the differences |a - b| by powers of ten: below 1e-10, then a class for each of
/// 1e-10 to 1e3, the last one without an end. Zero is not counted.
struct DifferenceDecades {
  static constexpr int first_power = -10;
  static constexpr std::size_t classes = 15;
  std::array<std::uint64_t, classes> counts{};

  /// Pre: difference > 0, finite.
  void add(double difference);
  void add(DifferenceDecades const& other);
  std::uint64_t sum() const;
  /// "below 1e-10", "1e-10", …, "1e3 and more".
  static std::string name(std::size_t number);
};

/// The findings in one logical tensor, or one layer of it. Elements with replicas in b are counted
/// once; differing replicas are counted separately.
struct TensorStats {
  std::uint64_t elements = 0;  ///< compared; only with Comparison::values
  std::uint64_t differing = 0;
  std::uint64_t differing_in_replicas = 0;
  DifferingElement first;  ///< replicas included

  // Of values: over elements that are finite on both sides.
  LargestValue absolute;  ///< |a - b|
  LargestValue relative;  ///< |a - b| / max(|a|, |b|)
  DifferenceDecades decades;
  double absolute_sum = 0;
  std::uint64_t finite = 0;  ///< the number of these elements
  double largest_a = 0;      ///< |a|
  double largest_b = 0;
  std::uint64_t nan_a = 0;
  std::uint64_t nan_b = 0;
  std::uint64_t infinite_a = 0;
  std::uint64_t infinite_b = 0;
  std::uint64_t non_finite_differing =
      0;  ///< one side is NaN or infinite and the other is not the same

  // Of replicas in b that differ, apart from all above.
  double absolute_in_replicas = 0;  ///< the largest |a - b| of finite values
  double relative_in_replicas = 0;
  std::uint64_t non_finite_in_replicas = 0;  ///< as non_finite_differing

  bool same() const { return differing == 0 && differing_in_replicas == 0; }
  void add(TensorStats const& other);
};

/// The statistics of all ranks together, on every rank. Collective. `stats` have the same length on
/// every rank.
void merge_stats(Comm const& comm, std::span<TensorStats> stats);

/// Whether values of this dtype can be shown: floating-point numbers, integers and booleans; not
/// complex numbers, nor elements smaller than a byte.
bool has_values(DType dtype);

/// The values of elements. Integers beyond 2^53 are rounded. Pre: has_values(dtype); from has
/// values.size() elements, at any address.
void decode_values(DType dtype, std::span<std::byte const> from, std::span<double> values);

/// An element in readable form: "0.0078125", "-3", "true", or "0x…" for dtypes without values.
std::string value_text(DType dtype, std::span<std::byte const> element);

}  // namespace reshard
