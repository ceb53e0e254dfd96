#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/threads/workers.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// The counts of kinds of values in a slice of a tensor. Plain data, for messages between ranks.
struct SliceValues {
  std::uint64_t slice = 0;     ///< its number, over all tensors
  std::uint64_t elements = 0;  ///< surveyed
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
  std::uint64_t zero = 0;       ///< of either sign
  std::uint64_t subnormal = 0;  ///< of floating-point numbers
  std::uint64_t negative = 0;   ///< below zero, of floating-point numbers of 16 bits and more
  std::uint64_t first = 0;      ///< the bits of one of the elements
  std::uint64_t uniform = 1;    ///< whether all elements have the same bits
  std::uint64_t crc64 = 0;      ///< of the row-major bytes of the slice (core/base/hash/crc64.hpp)

  void add(SliceValues const& other);
};

/// Counts the elements of `bytes`, which are complete; `slice` and `crc64` stay 0. Elements smaller
/// than a byte, and complex ones, count only in `elements` (packed ones as bytes).
SliceValues values_of(DType dtype, std::span<std::byte const> bytes);

/// A tensor whose row-major bytes are surveyed, cut into slices of equal length.
struct SurveyedTensor {
  DType dtype = DType::u8;
  std::uint64_t slice_bytes = 1;
  std::uint64_t slices = 0;
};

/// Surveys the slices of tensors, which are numbered over all tensors, in order.
class ValueSurvey {
 public:
  ValueSurvey(std::vector<SurveyedTensor> tensors, std::size_t threads);

  struct Stretch {
    std::uint32_t tensor = 0;
    std::uint64_t offset_bytes = 0;  ///< in the tensor's row-major bytes
    std::span<std::byte const> bytes;
  };
  /// Takes ranges that begin and end with elements; each byte must be taken once.
  void take(std::span<Stretch const> stretches);

  /// The number of a tensor's first slice.
  std::uint64_t first_slice(std::uint32_t tensor) const { return first_[tensor]; }

  /// The slices of all ranks together, by number. Collective.
  std::vector<SliceValues> merged(Comm const& comm) const;

 private:
  void take_part(Stretch const& part);

  std::vector<SurveyedTensor> tensors_;
  std::vector<std::uint64_t> first_;  ///< by tensor; the last entry is the number of all slices
  Workers workers_;
  std::mutex mutex_;
  std::vector<SliceValues> slices_;
};

}  // namespace reshard
