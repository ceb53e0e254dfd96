#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace reshard {

/// The staging memory of a rank: allocated and touched once, given out in blocks, taken back in the order it was given. Not thread safe.
///
/// A block is contiguous and begins on a page. One that does not fit before the end begins again at the front; what it skips counts as used
/// until the block comes back.
class StagingRing {
 public:
  /// `bytes` is rounded up to pages; a refusal of the system is an Error of kind resources.
  explicit StagingRing(std::uint64_t bytes);
  ~StagingRing();
  StagingRing(StagingRing const&) = delete;
  StagingRing& operator=(StagingRing const&) = delete;

  /// A block of at least `bytes`, or nothing while older blocks are in its way. An empty ring has room for capacity_bytes().
  std::optional<std::byte*> take(std::uint64_t bytes);
  /// Frees the oldest block. Pre: there is one.
  void give_back_oldest();

  std::uint64_t capacity_bytes() const { return capacity_; }
  std::uint64_t high_water_bytes() const { return high_water_; }
  std::size_t blocks() const { return used_by_block_.size(); }

 private:
  std::byte* memory_ = nullptr;
  std::uint64_t capacity_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t used_ = 0;
  std::uint64_t high_water_ = 0;
  std::deque<std::uint64_t> used_by_block_;
};

}  // namespace reshard
