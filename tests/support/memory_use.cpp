#include "tests/support/memory_use.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace reshard {
namespace {

std::atomic<std::int64_t> held = 0;
std::atomic<std::int64_t> held_at_begin = 0;
std::atomic<std::int64_t> peak = 0;

void* counted(void* memory) {
  if (memory == nullptr) return nullptr;
  std::int64_t const now = held += static_cast<std::int64_t>(::malloc_usable_size(memory));
  for (std::int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);)
    continue;
  return memory;
}

void* counted_or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return counted(memory);
}

void give_back(void* memory) {
  if (memory != nullptr) held -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

std::size_t whole(std::size_t bytes, std::align_val_t alignment) {
  auto const unit = static_cast<std::size_t>(alignment);
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

void begin_memory_use() {
  held_at_begin = held.load();
  peak = held.load();
}

std::uint64_t peak_memory_bytes() { return static_cast<std::uint64_t>(peak - held_at_begin); }

}  // namespace reshard

// NOLINTBEGIN(misc-new-delete-overloads)
void* operator new(std::size_t bytes) { return reshard::counted_or_throw(std::malloc(bytes)); }
void* operator new[](std::size_t bytes) { return reshard::counted_or_throw(std::malloc(bytes)); }
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  return reshard::counted(std::malloc(bytes));
}
void* operator new[](std::size_t bytes, std::nothrow_t const&) noexcept {
  return reshard::counted(std::malloc(bytes));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return reshard::counted_or_throw(
      std::aligned_alloc(static_cast<std::size_t>(alignment), reshard::whole(bytes, alignment)));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return operator new(bytes, alignment);
}
void operator delete(void* memory) noexcept { reshard::give_back(memory); }
void operator delete[](void* memory) noexcept { reshard::give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { reshard::give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { reshard::give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { reshard::give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { reshard::give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  reshard::give_back(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  reshard::give_back(memory);
}
// NOLINTEND(misc-new-delete-overloads)
