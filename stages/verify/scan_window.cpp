#include "stages/verify/scan_window.hpp"

#include <algorithm>

namespace reshard {
namespace {

constexpr std::uint64_t gap_to_skip_bytes = std::uint64_t{1} << 20;

}  // namespace

std::optional<ScanWindow> ScanWindows::next() {
  std::optional<std::uint64_t> const begin = next_begin();
  if (!begin) return std::nullopt;
  ScanWindow window;
  window.begin = *begin / scan_page_bytes * scan_page_bytes;
  window.fresh = std::max(window.begin, done_);
  window.end = std::min(window.begin + window_bytes_, file_bytes_);
  if (extent_ == ScanExtent::wanted) window.end = wanted_end(window.begin, window.end);
  for (; seen_ < blocks_.size() && blocks_[seen_].begin < window.end; ++seen_)
    waiting_.push_back(blocks_[seen_]);
  auto const waits = [&](ScanBlock const& block) { return block.end > window.end; };
  auto const ready = std::stable_partition(waiting_.begin(), waiting_.end(), waits);
  window.blocks.assign(ready, waiting_.end());
  waiting_.erase(ready, waiting_.end());
  done_ = window.end;
  any_ = true;
  return window;
}

std::optional<std::uint64_t> ScanWindows::next_begin() const {
  if (!waiting_.empty()) return waiting_.front().begin;
  if (extent_ == ScanExtent::whole)
    return done_ < file_bytes_ || !any_ ? std::optional(done_) : std::nullopt;
  return seen_ < blocks_.size() ? std::optional(blocks_[seen_].begin) : std::nullopt;
}

/// Where a window from `begin` to `most` may end: after the last byte that blocks need in it, and
/// before a large gap.
std::uint64_t ScanWindows::wanted_end(std::uint64_t begin, std::uint64_t most) const {
  std::uint64_t end = begin;
  for (ScanBlock const& block : waiting_) end = std::max(end, block.end);
  for (std::size_t i = seen_; i < blocks_.size() && blocks_[i].begin < most; ++i) {
    if (end > begin && blocks_[i].begin > end + gap_to_skip_bytes) break;
    end = std::max(end, blocks_[i].end);
  }
  return std::min((end + scan_page_bytes - 1) / scan_page_bytes * scan_page_bytes, most);
}

}  // namespace reshard
