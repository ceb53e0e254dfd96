#include "core/base/tables/shared_shape.hpp"

#include <algorithm>

#include "core/base/hash/mixed_bits.hpp"
#include "core/base/tables/interned.hpp"

namespace reshard {
namespace {

using Sizes = std::span<Index const>;

struct ShapeTraits {
  static std::size_t hash(Sizes sizes) {
    std::uint64_t hash = sizes.size();
    for (Index const size : sizes)
      hash = mixed_bits(hash * factor + static_cast<std::uint64_t>(size));
    return hash;
  }
  static bool same(Sizes known, Sizes asked) { return std::ranges::equal(known, asked); }

 private:
  static constexpr std::uint64_t factor = 0x9e3779b97f4a7c15U;
};

/// A vector that can be constructed from a span of sizes, as Interned requires.
struct Shape : std::vector<Index> {
  explicit Shape(Sizes sizes) : std::vector<Index>(sizes.begin(), sizes.end()) {}
};

using ShapeTable = Interned<Shape, ShapeTraits>;

/// Never destroyed: shapes in static storage may outlive any other object. Number 0 has no
/// dimensions.
ShapeTable& shapes() {
  static auto* const table = [] {
    auto* const made = new ShapeTable;
    made->number_of(Sizes());
    return made;
  }();
  return *table;
}

}  // namespace

std::vector<Index> const& SharedShape::sizes() const { return shapes().at(number_); }

std::uint32_t SharedShape::number_of(std::span<Index const> sizes) {
  return sizes.empty() ? 0 : shapes().number_of(sizes);
}

}  // namespace reshard
