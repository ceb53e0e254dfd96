#include "core/base/text/shared_text.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
#include <vector>

#include <xxhash.h>

namespace reshard {

struct SharedText::Entry {
  Entry(std::string_view of, std::uint32_t hashed) : text(of), hash(hashed) {}

  std::string text;
  std::uint32_t hash;
  std::atomic<std::uint32_t> holders = 1;
};

/// All texts of the process, in parts with a lock each. A count falls to 0 only under the lock of
/// its part, so an entry that is found there is alive.
class SharedText::Pool {
 public:
  /// Never destroyed: texts in static storage may outlive any other object.
  static Pool& of_process() {
    static auto* const pool = new Pool;
    return *pool;
  }

  Entry* take(std::string_view text) {
    auto const hash =
        static_cast<std::uint32_t>(XXH3_64bits_withSeed(text.data(), text.size(), seed_));
    return part_of(hash).take(text, hash);
  }

  void give_back(Entry* entry) { part_of(entry->hash).give_back(entry); }

 private:
  /// A hash table with linear probing.
  class Part {
   public:
    Entry* take(std::string_view text, std::uint32_t hash) {
      std::lock_guard const lock(mutex_);
      if (4 * (count_ + 1) > 3 * slots_.size()) grow();
      std::size_t at = home(hash);
      for (; slots_[at].entry != nullptr; at = after(at))
        if (slots_[at].hash == hash && slots_[at].entry->text == text) {
          ++slots_[at].entry->holders;
          return slots_[at].entry;
        }
      slots_[at] = {hash, new Entry(text, hash)};
      ++count_;
      return slots_[at].entry;
    }

    void give_back(Entry* entry) {
      std::lock_guard const lock(mutex_);
      if (--entry->holders > 0) return;
      std::size_t at = home(entry->hash);
      while (slots_[at].entry != entry) at = after(at);
      delete entry;
      --count_;
      close_gap(at);
    }

   private:
    struct Slot {
      std::uint32_t hash = 0;
      Entry* entry = nullptr;  ///< null: free
    };

    std::size_t home(std::uint32_t hash) const { return hash / parts & (slots_.size() - 1); }
    std::size_t after(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }

    /// Moves the next entry that could no longer be found into the gap, and repeats with the gap
    /// that it leaves.
    void close_gap(std::size_t gap) {
      for (std::size_t at = after(gap); slots_[at].entry != nullptr; at = after(at)) {
        std::size_t const mask = slots_.size() - 1;
        if (((at - home(slots_[at].hash)) & mask) < ((at - gap) & mask)) continue;
        slots_[gap] = slots_[at];
        gap = at;
      }
      slots_[gap] = {};
    }

    void grow() {
      std::vector<Slot> before(slots_.empty() ? 64 : 2 * slots_.size());
      before.swap(slots_);
      for (Slot const& slot : before) {
        if (slot.entry == nullptr) continue;
        std::size_t at = home(slot.hash);
        while (slots_[at].entry != nullptr) at = after(at);
        slots_[at] = slot;
      }
    }

    std::mutex mutex_;
    std::vector<Slot> slots_;  ///< a power of two, at most three quarters in use
    std::size_t count_ = 0;
  };

  Part& part_of(std::uint32_t hash) { return parts_[hash % parts]; }

  static constexpr std::size_t parts = 16;
  std::array<Part, parts> parts_;
  std::uint64_t const seed_ = std::random_device()();  ///< names cannot be made to have one hash
};

SharedText::SharedText(SharedText const& other) noexcept : entry_(other.entry_) {
  if (entry_ != nullptr) ++entry_->holders;
}

std::string const& SharedText::text() const {
  static auto const* const nothing = new std::string;
  return entry_ == nullptr ? *nothing : entry_->text;
}

SharedText::Entry* SharedText::entry_of(std::string_view text) {
  return text.empty() ? nullptr : Pool::of_process().take(text);
}

void SharedText::release() noexcept {
  std::uint32_t holders = entry_->holders;
  while (holders > 1)
    if (entry_->holders.compare_exchange_weak(holders, holders - 1)) return;
  Pool::of_process().give_back(entry_);
}

}  // namespace reshard
