#include "stages/verify/scans/scan_window.hpp"

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
  if (passed_ < skipped_.size()) window.end = std::min(window.end, skipped_[passed_].begin);
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

void ScanWindows::leave_out(std::span<FileSpan const> skipped) {
  if (extent_ != ScanExtent::whole || skipped.empty()) return;
  std::vector<ByteRange> ranges;
  for (FileSpan const& span : skipped) ranges.push_back({span.begin, span.end});
  std::uint64_t const last = (std::max<std::uint64_t>(file_bytes_, 1) - 1) / scan_page_bytes;
  std::vector<ByteRange> wanted = {{0, scan_page_bytes}, {last * scan_page_bytes, file_bytes_}};
  for (ScanBlock const& block : blocks_)
    wanted.push_back({block.begin / scan_page_bytes * scan_page_bytes,
                      (block.end + scan_page_bytes - 1) / scan_page_bytes * scan_page_bytes});
  skipped_ = without(united(std::move(ranges)), united(std::move(wanted)));
}

std::optional<std::uint64_t> ScanWindows::next_begin() {
  if (!waiting_.empty()) return waiting_.front().begin;
  if (passed_ < skipped_.size() && skipped_[passed_].begin == done_)
    done_ = skipped_[passed_++].end;
  if (extent_ == ScanExtent::whole)
    return done_ < file_bytes_ || !any_ ? std::optional(done_) : std::nullopt;
  return seen_ < blocks_.size() ? std::optional(blocks_[seen_].begin) : std::nullopt;
}

/// The end of a window from `begin` to `most`: after the last byte that blocks need in it, and
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
