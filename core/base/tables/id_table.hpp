#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace reshard {

/// A hash table of ids: finds numbered objects, which are stored elsewhere, by their value.
class IdTable {
 public:
  static constexpr std::uint32_t none = 0xffffffff;

  /// The id of the object with this hash for which `is_it(id)` holds, or `none`.
  template <class IsIt>
  std::uint32_t id(std::uint64_t hash, IsIt is_it) const {
    return slots_.empty() ? none : slots_[slot(hash, is_it)];
  }

  /// Makes room for one more id. `hash_of_id(id)` is the hash of an object that is in the table.
  template <class HashOfId>
  void make_room(HashOfId hash_of_id) {
    if ((used_ + 1) * 3 <= slots_.size() * 2) return;
    reserve(used_ + 1, hash_of_id);
  }
  /// Makes room for `count` ids in total.
  template <class HashOfId>
  void reserve(std::size_t count, HashOfId hash_of_id) {
    std::size_t size = 16;
    while (size * 2 < (count + 1) * 3) size *= 2;
    std::vector<std::uint32_t> const old =
        std::exchange(slots_, std::vector<std::uint32_t>(size, none));
    for (std::uint32_t const id : old)
      if (id != none) slots_[free_slot(hash_of_id(id))] = id;
  }
  /// Adds an object that is not in the table. Pre: make_room() or reserve() was called.
  void add(std::uint64_t hash, std::uint32_t id) {
    slots_[free_slot(hash)] = id;
    ++used_;
  }
  /// Adds an object, or replaces the id of the object with this hash for which `is_it(id)` holds.
  /// Pre: make_room() or reserve() was called.
  template <class IsIt>
  void add_or_replace(std::uint64_t hash, std::uint32_t id, IsIt is_it) {
    std::uint32_t& known = slots_[slot(hash, is_it)];
    used_ += known == none ? 1 : 0;
    known = id;
  }

 private:
  template <class IsIt>
  std::size_t slot(std::uint64_t hash, IsIt is_it) const {
    std::size_t at = hash & (slots_.size() - 1);
    while (slots_[at] != none && !is_it(slots_[at])) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  std::size_t free_slot(std::uint64_t hash) const {
    return slot(hash, [](std::uint32_t) { return false; });
  }

  std::vector<std::uint32_t> slots_;  ///< a power of two, at most two thirds full
  std::size_t used_ = 0;
};

}  // namespace reshard
