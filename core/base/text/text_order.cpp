#include "core/base/text/text_order.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <tuple>

#include "core/base/tables/integers.hpp"

namespace reshard {
namespace {

constexpr std::size_t step_bytes = sizeof(std::uint64_t);
/// So few are compared as they are.
constexpr std::size_t few = 8;

struct Keyed {
  std::uint64_t key = 0;  ///< the bytes of this step, the first one the most significant
  std::uint32_t number = 0;
};

/// Texts that have the first `depth` bytes in common: [begin, end) of all.
struct Group {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t depth = 0;
};

class TextSort {
 public:
  TextSort(std::size_t count, std::function<std::string_view(std::size_t)> const& text_of)
      : text_of_(text_of), all_(count) {
    for (std::size_t i = 0; i < count; ++i) all_[i].number = narrow<std::uint32_t>(i);
    open_.push_back({0, count, 0});
  }

  std::vector<std::uint32_t> run() {
    while (!open_.empty()) {
      Group const group = open_.back();
      open_.pop_back();
      sort(group);
    }
    std::vector<std::uint32_t> order;
    order.reserve(all_.size());
    for (Keyed const& one : all_) order.push_back(one.number);
    return order;
  }

 private:
  std::uint64_t key_of(std::string_view text, std::size_t depth) const {
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t key = 0;
    if (text.size() > depth)
      std::memcpy(&key, text.data() + depth, std::min(step_bytes, text.size() - depth));
    return __builtin_bswap64(key);
  }

  void sort_as_they_are(std::span<Keyed> some) {
    std::ranges::sort(some, [this](Keyed const& a, Keyed const& b) {
      return std::tuple(text_of_(a.number), a.number) < std::tuple(text_of_(b.number), b.number);
    });
  }

  void sort(Group const& group) {
    std::span const some = std::span(all_).subspan(group.begin, group.end - group.begin);
    if (some.size() <= few) return sort_as_they_are(some);
    for (Keyed& one : some) one.key = key_of(text_of_(one.number), group.depth);
    auto const before = [](Keyed const& a, Keyed const& b) {
      return std::tie(a.key, a.number) < std::tie(b.key, b.number);
    };
    if (!std::ranges::is_sorted(some, before)) std::ranges::sort(some, before);
    for (std::size_t begin = 0, end = 0; begin < some.size(); begin = end) {
      while (end < some.size() && some[end].key == some[begin].key) ++end;
      if (end - begin > 1) divide(group.begin + begin, group.begin + end, group.depth + step_bytes);
    }
  }

  /// Texts that are the same up to here, as far as they go: those that end come first.
  void divide(std::size_t begin, std::size_t end, std::size_t depth) {
    auto const first = all_.begin() + static_cast<std::ptrdiff_t>(begin);
    auto const last = all_.begin() + static_cast<std::ptrdiff_t>(end);
    auto const rest = std::partition(
        first, last, [&](Keyed const& one) { return text_of_(one.number).size() <= depth; });
    sort_as_they_are({first, rest});
    if (last - rest > 1) open_.push_back({end - static_cast<std::size_t>(last - rest), end, depth});
  }

  std::function<std::string_view(std::size_t)> const& text_of_;
  std::vector<Keyed> all_;
  std::vector<Group> open_;
};

}  // namespace

std::vector<std::uint32_t> text_order(
    std::size_t count, std::function<std::string_view(std::size_t number)> const& text_of) {
  return TextSort(count, text_of).run();
}

}  // namespace reshard
