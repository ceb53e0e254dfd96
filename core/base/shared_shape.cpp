#include "core/base/shared_shape.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "core/base/error.hpp"

namespace reshard {
namespace {

/// All shapes of the process by number. They lie in blocks of 1, 2, 4, … and never move, so that
/// reading one takes no lock.
class ShapePool {
 public:
  /// Never destroyed: shapes in static storage may outlive any other object.
  static ShapePool& of_process() {
    static auto* const pool = new ShapePool;
    return *pool;
  }

  std::vector<Index> const& operator[](std::uint32_t number) const {
    auto const [block, place] = place_of(number);
    return blocks_[block].load(std::memory_order_acquire)[place];
  }

  std::uint32_t take(std::span<Index const> sizes) {
    {
      std::shared_lock const lock(mutex_);
      if (auto const known = numbers_.find(sizes); known != numbers_.end()) return *known;
    }
    std::unique_lock const lock(mutex_);
    if (auto const known = numbers_.find(sizes); known != numbers_.end()) return *known;
    auto const number = narrow<std::uint32_t>(numbers_.size() + 1);  // 0 is in no set
    auto const [block, place] = place_of(number);
    if (place == 0) add_block(block);
    blocks_[block].load(std::memory_order_relaxed)[place].assign(sizes.begin(), sizes.end());
    numbers_.insert(number);
    return number;
  }

 private:
  struct Place {
    unsigned block;
    std::uint32_t place;
  };
  /// Number 0 is alone in block 0, 1 and 2 are in block 1.
  static Place place_of(std::uint32_t number) {
    std::uint64_t const from_one = std::uint64_t{number} + 1;
    auto const block = static_cast<unsigned>(std::bit_width(from_one) - 1);
    return {block, static_cast<std::uint32_t>(from_one - (std::uint64_t{1} << block))};
  }

  struct BySizes {
    using is_transparent = void;
    ShapePool const* pool;
    std::span<Index const> sizes(std::uint32_t number) const { return (*pool)[number]; }
    std::span<Index const> sizes(std::span<Index const> given) const { return given; }
    template <class A, class B>
    bool operator()(A const& a, B const& b) const {
      return std::ranges::lexicographical_compare(sizes(a), sizes(b));
    }
  };

  ShapePool() { add_block(0); }

  void add_block(unsigned block) {
    owned_[block] = std::make_unique<std::vector<Index>[]>(std::size_t{1} << block);
    blocks_[block].store(owned_[block].get(), std::memory_order_release);
  }

  std::array<std::unique_ptr<std::vector<Index>[]>, 33> owned_;
  std::array<std::atomic<std::vector<Index>*>, 33> blocks_{};
  std::shared_mutex mutex_;  ///< of numbers_ and of what is added
  std::set<std::uint32_t, BySizes> numbers_{BySizes{this}};
};

}  // namespace

std::vector<Index> const& SharedShape::sizes() const { return ShapePool::of_process()[number_]; }

std::uint32_t SharedShape::number_of(std::span<Index const> sizes) {
  return sizes.empty() ? 0 : ShapePool::of_process().take(sizes);
}

}  // namespace reshard
