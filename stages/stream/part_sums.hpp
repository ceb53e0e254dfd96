#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/plan/round.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// The CRC-64 of a part of a tensor's row-major bytes, and how many of them were seen.
struct PartSum {
  std::uint64_t number = 0;  ///< of the part, through all tensors
  std::uint64_t crc64 = 0;   ///< core/base/crc64.hpp: 0 for zeros alone
  std::uint64_t bytes = 0;
};

/// A tensor with a digest, cut into parts of equal length: its layers and experts.
struct PartedTensor {
  std::uint64_t part_bytes = 1;
  std::uint64_t parts = 0;  ///< 0: it is not cut, and has no sums
};

/// Sums of parts of tensors, taken in the same pass as the digests of the tensors, which are sums
/// of them. Used by several threads at once.
class PartSums {
 public:
  /// By DigestId; digests behind them have no sums.
  explicit PartSums(std::vector<PartedTensor> tensors);

  /// The share of a part of a round in its digest (as strided_digest()), and, on the way, those of
  /// the layers and experts that it has bytes of.
  std::uint64_t add(DigestPart const& part, std::byte const* staging);

  std::uint64_t first_part(DigestId digest) const { return first_[index(digest)]; }

  /// Those of all ranks together, by number. Collective.
  std::vector<PartSum> merged(Comm const& comm) const;

 private:
  std::vector<PartedTensor> tensors_;
  std::vector<std::uint64_t> first_;  ///< then the number of all parts
  std::mutex mutex_;
  std::vector<PartSum> sums_;
};

}  // namespace reshard
