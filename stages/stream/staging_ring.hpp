#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/ring_space.hpp"

namespace reshard {

/// The staging memory of a rank: allocated and touched once, given out in blocks, taken back in the
/// order it was given. Not thread safe. A block is contiguous and begins on a page.
class StagingRing {
 public:
  /// `bytes` is rounded up to pages; a refusal of the system is an Error of kind resources.
  explicit StagingRing(std::uint64_t bytes);
  ~StagingRing();
  StagingRing(StagingRing const&) = delete;
  StagingRing& operator=(StagingRing const&) = delete;

  /// A block of at least `bytes`, or nothing while older blocks are in its way. An empty ring has
  /// room for capacity_bytes().
  std::optional<std::byte*> take(std::uint64_t bytes);
  /// Frees the oldest block. Pre: there is one.
  void give_back_oldest() { space_.give_back_oldest(); }

  /// The whole ring.
  std::byte* data() { return memory_; }
  std::uint64_t capacity_bytes() const { return space_.capacity_bytes(); }
  std::uint64_t high_water_bytes() const { return space_.high_water_bytes(); }
  std::size_t blocks() const { return space_.blocks(); }

 private:
  std::byte* memory_ = nullptr;
  RingSpace space_;
};

}  // namespace reshard
