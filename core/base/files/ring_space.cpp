#include "core/base/files/ring_space.hpp"

#include <algorithm>

namespace reshard {

std::optional<std::uint64_t> RingSpace::take(std::uint64_t bytes) {
  std::uint64_t const wanted = (bytes + granule_ - 1) / granule_ * granule_;
  std::uint64_t const free = capacity_ - used_;
  std::uint64_t const before_end = capacity_ - next_;
  bool const wraps = wanted > before_end;
  std::uint64_t const skipped = wraps ? before_end : 0;
  if (skipped + wanted > free) return std::nullopt;
  if (wraps) next_ = 0;
  std::uint64_t const block = next_;
  next_ += wanted;
  used_ += skipped + wanted;
  high_water_ = std::max(high_water_, used_);
  used_by_block_.push_back(skipped + wanted);
  return block;
}

void RingSpace::give_back_oldest() {
  used_ -= used_by_block_.front();
  used_by_block_.pop_front();
  if (used_by_block_.empty()) next_ = 0;
}

}  // namespace reshard
