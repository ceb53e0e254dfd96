#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace reshard {

/// Allocates blocks in a ring of bytes; they are freed in the order of allocation. Not thread safe.
///
/// A block is contiguous. One that does not fit before the end begins at the front; the skipped
/// bytes count as used until the block is freed.
class RingSpace {
 public:
  /// Blocks begin on multiples of `granule_bytes`. Pre: capacity_bytes is one, too.
  RingSpace(std::uint64_t capacity_bytes, std::uint64_t granule_bytes)
      : capacity_(capacity_bytes), granule_(granule_bytes) {}

  /// Allocates a block of at least `bytes` and returns its offset; nullopt while older blocks take
  /// the room. An empty ring has room for capacity_bytes().
  std::optional<std::uint64_t> take(std::uint64_t bytes);
  /// Frees the oldest block. Pre: there is one.
  void give_back_oldest();

  std::uint64_t capacity_bytes() const { return capacity_; }
  std::uint64_t high_water_bytes() const { return high_water_; }
  std::size_t blocks() const { return used_by_block_.size(); }

 private:
  std::uint64_t capacity_;
  std::uint64_t granule_;
  std::uint64_t next_ = 0;
  std::uint64_t used_ = 0;
  std::uint64_t high_water_ = 0;
  std::deque<std::uint64_t> used_by_block_;
};

}  // namespace reshard
