#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/files/ring_space.hpp"

namespace reshard {

/// The staging memory of a rank: allocated and touched once, divided into blocks that are freed in
/// the order of allocation. Not thread safe. A block is contiguous and begins on a page.
class StagingRing {
 public:
  /// `bytes` is rounded up to pages; a refusal of the system is an Error of kind resources.
  explicit StagingRing(std::uint64_t bytes);
  ~StagingRing();
  StagingRing(StagingRing const&) = delete;
  StagingRing& operator=(StagingRing const&) = delete;

  /// Allocates a block of at least `bytes`; nullopt while older blocks take the room. An empty ring
  /// has room for capacity_bytes().
  std::optional<std::byte*> take(std::uint64_t bytes);
  /// Frees the oldest block. Pre: there is one.
  void give_back_oldest() { space_.give_back_oldest(); }

  /// The beginning of the ring's memory.
  std::byte* data() { return memory_; }
  std::uint64_t capacity_bytes() const { return space_.capacity_bytes(); }
  std::uint64_t high_water_bytes() const { return space_.high_water_bytes(); }
  std::size_t blocks() const { return space_.blocks(); }

 private:
  std::byte* memory_ = nullptr;
  RingSpace space_;
};

}  // namespace reshard
