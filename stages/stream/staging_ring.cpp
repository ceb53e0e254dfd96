#include "stages/stream/staging_ring.hpp"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>

#include "core/base/files/file.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t page = 4096;

#ifdef MADV_POPULATE_WRITE
constexpr int populate_write = MADV_POPULATE_WRITE;
#else
constexpr int populate_write = 23;  // Linux 5.14; older kernels answer EINVAL
#endif

std::uint64_t whole_pages(std::uint64_t bytes) { return (bytes + page - 1) / page * page; }

/// Touches every page now: fresh memory is slow, and a lack of memory should be found before the
/// first byte is read.
void touch(std::byte* memory, std::uint64_t bytes) {
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  if (::madvise(memory, bytes, populate_write) == 0) return;
  if (errno == ENOMEM || errno == EFAULT)
    fail(ErrorKind::resources,
         "staging memory: {} cannot be allocated: {}. Lower run.memory or start fewer ranks on "
         "this host.",
         human_bytes(bytes), system_reason(errno));
  for (std::uint64_t at = 0; at < bytes; at += page)
    *const_cast<std::byte volatile*>(memory + at) = std::byte{0};
}

}  // namespace

StagingRing::StagingRing(std::uint64_t bytes) : space_(std::max(whole_pages(bytes), page), page) {
  std::uint64_t const capacity = capacity_bytes();
  void* const mapped =
      ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    fail(ErrorKind::resources,
         "staging memory: {} cannot be allocated: {}. Lower run.memory or start fewer ranks on "
         "this host.",
         human_bytes(capacity), system_reason(errno));
  memory_ = static_cast<std::byte*>(mapped);
  try {
    touch(memory_, capacity);
  } catch (...) {
    ::munmap(memory_, capacity);
    throw;
  }
}

StagingRing::~StagingRing() { ::munmap(memory_, capacity_bytes()); }

std::optional<std::byte*> StagingRing::take(std::uint64_t bytes) {
  auto const at = space_.take(bytes);
  return at ? std::optional(memory_ + *at) : std::nullopt;
}

}  // namespace reshard
