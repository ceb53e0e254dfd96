#include "pipeline/staging_ring.hpp"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>

#include "core/base/file.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t page = 4096;

#ifdef MADV_POPULATE_WRITE
constexpr int populate_write = MADV_POPULATE_WRITE;
#else
constexpr int populate_write = 23;  // Linux 5.14; older kernels answer EINVAL
#endif

std::uint64_t whole_pages(std::uint64_t bytes) { return (bytes + page - 1) / page * page; }

/// Touches every page now: fresh memory is slow, and a machine that has none left should say so before the first byte is read.
void touch(std::byte* memory, std::uint64_t bytes) {
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  if (::madvise(memory, bytes, populate_write) == 0) return;
  if (errno == ENOMEM || errno == EFAULT)
    fail(ErrorKind::resources, "staging memory: {} cannot be had: {}. Lower run.memory or start fewer ranks on this host.", human_bytes(bytes),
         system_reason(errno));
  for (std::uint64_t at = 0; at < bytes; at += page) *const_cast<std::byte volatile*>(memory + at) = std::byte{0};
}

}  // namespace

StagingRing::StagingRing(std::uint64_t bytes) : capacity_(std::max(whole_pages(bytes), page)) {
  void* const mapped = ::mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    fail(ErrorKind::resources, "staging memory: {} cannot be had: {}. Lower run.memory or start fewer ranks on this host.", human_bytes(capacity_),
         system_reason(errno));
  memory_ = static_cast<std::byte*>(mapped);
  try {
    touch(memory_, capacity_);
  } catch (...) {
    ::munmap(memory_, capacity_);
    throw;
  }
}

StagingRing::~StagingRing() { ::munmap(memory_, capacity_); }

std::optional<std::byte*> StagingRing::take(std::uint64_t bytes) {
  std::uint64_t const wanted = whole_pages(bytes);
  std::uint64_t const free = capacity_ - used_;
  std::uint64_t const before_end = capacity_ - next_;
  bool const wraps = wanted > before_end;
  std::uint64_t const skipped = wraps ? before_end : 0;
  if (skipped + wanted > free) return std::nullopt;
  if (wraps) next_ = 0;
  std::byte* const block = memory_ + next_;
  next_ += wanted;
  used_ += skipped + wanted;
  high_water_ = std::max(high_water_, used_);
  used_by_block_.push_back(skipped + wanted);
  return block;
}

void StagingRing::give_back_oldest() {
  used_ -= used_by_block_.front();
  used_by_block_.pop_front();
  if (used_by_block_.empty()) next_ = 0;
}

}  // namespace reshard
