#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_set>

#include "core/base/error.hpp"

namespace reshard {

/// Stores each distinct value once, by number, until the process ends: for values with very many
/// holders. A value is stored before any thread has its number, so reading takes no lock.
///
/// `Traits` has `static std::size_t hash(Key const&)` and `static bool same(Value const&, Key
/// const&)`, where Key is Value or a type from which Value can be constructed. Keys that are the
/// same as a value have its hash.
template <class Value, class Traits>
class Interned {
 public:
  Interned() : numbers_(0, NumberHash{this}, SameNumber{this}) {}
  Interned(Interned const&) = delete;
  Interned& operator=(Interned const&) = delete;

  Value const& at(std::uint32_t number) const {
    return blocks_[number / block_size].load(std::memory_order_acquire)[number % block_size];
  }

  /// The number of the value that is the same as `key`, which is added if there is none.
  template <class Key>
  std::uint32_t number_of(Key const& key) {
    std::lock_guard const lock(mutex_);
    if (auto const known = numbers_.find(key); known != numbers_.end()) return *known;
    std::uint32_t const block = count_ / block_size;
    RESHARD_EXPECT(block < blocks_.size());
    if (count_ % block_size == 0)
      blocks_[block].store(std::allocator<Value>().allocate(block_size), std::memory_order_release);
    std::construct_at(blocks_[block].load(std::memory_order_relaxed) + count_ % block_size, key);
    numbers_.insert(count_);
    return count_++;
  }

 private:
  struct NumberHash {
    using is_transparent = void;
    Interned const* all;
    std::size_t operator()(std::uint32_t number) const { return Traits::hash(all->at(number)); }
    template <class Key>
    std::size_t operator()(Key const& key) const {
      return Traits::hash(key);
    }
  };
  struct SameNumber {
    using is_transparent = void;
    Interned const* all;
    bool operator()(std::uint32_t a, std::uint32_t b) const { return a == b; }
    template <class Key>
    bool operator()(Key const& key, std::uint32_t number) const {
      return Traits::same(all->at(number), key);
    }
    template <class Key>
    bool operator()(std::uint32_t number, Key const& key) const {
      return Traits::same(all->at(number), key);
    }
  };

  static constexpr std::uint32_t block_size = 1U << 13;
  std::mutex mutex_;
  std::array<std::atomic<Value*>, 1U << 15> blocks_{};
  std::unordered_set<std::uint32_t, NumberHash, SameNumber> numbers_;
  std::uint32_t count_ = 0;
};

}  // namespace reshard
