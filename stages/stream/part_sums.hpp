#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/plan/cells/round.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// The CRC-64 of a part of a tensor's row-major bytes, and the number of bytes summed.
struct PartSum {
  std::uint64_t number = 0;  ///< of the part, counted over all tensors
  std::uint64_t crc64 = 0;   ///< core/base/hash/crc64.hpp: 0 if all bytes are zero
  std::uint64_t bytes = 0;
};

/// A tensor with a digest, cut into parts of equal length: its layers and experts.
struct PartedTensor {
  std::uint64_t part_bytes = 1;
  std::uint64_t parts = 0;  ///< 0: not cut, no sums
};

/// Sums of parts of tensors, taken in the same pass as the digests of the tensors, which are
/// combined from them. Used by several threads at once.
class PartSums {
 public:
  /// `tensors` by DigestId; digests after them have no sums.
  explicit PartSums(std::vector<PartedTensor> tensors);

  /// Returns the share of a round's part in its digest (as strided_digest()), and adds those of the
  /// layers and experts that it has bytes of.
  std::uint64_t add(DigestPart const& part, std::byte const* staging);

  std::uint64_t first_part(DigestId digest) const { return first_[index(digest)]; }

  /// The sums over all ranks, by number. Collective.
  std::vector<PartSum> merged(Comm const& comm) const;

 private:
  std::vector<PartedTensor> tensors_;
  std::vector<std::uint64_t> first_;  ///< by tensor; the last entry is the number of all parts
  std::mutex mutex_;
  std::vector<PartSum> sums_;
};

}  // namespace reshard
