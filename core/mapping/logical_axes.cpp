#include "core/mapping/logical_axes.hpp"

#include "core/base/hash/mixed_bits.hpp"
#include "core/base/tables/interned.hpp"

namespace reshard {
namespace {

using AxisList = std::vector<LogicalAxis>;

struct AxesTraits {
  static std::size_t hash(AxisList const& axes) {
    std::uint64_t hash = axes.size();
    for (LogicalAxis const& axis : axes)
      for (std::uint64_t const word :
           {std::uint64_t{axis.axis}, static_cast<std::uint64_t>(axis.div),
            std::uint64_t{axis.set.hash()}})
        hash = mixed_bits(hash * factor + word);
    return hash;
  }
  static bool same(AxisList const& known, AxisList const& asked) { return known == asked; }

 private:
  static constexpr std::uint64_t factor = 0x9e3779b97f4a7c15U;
};

using AxesTable = Interned<AxisList, AxesTraits>;

/// Never destroyed: models in static storage may outlive any other object. Number 0 is empty.
AxesTable& lists() {
  static auto* const table = [] {
    auto* const made = new AxesTable;
    made->number_of(AxisList());
    return made;
  }();
  return *table;
}

}  // namespace

std::vector<LogicalAxis> const& LogicalAxes::list() const { return lists().at(number_); }

std::uint32_t LogicalAxes::number_of(std::vector<LogicalAxis> const& axes) {
  return axes.empty() ? 0 : lists().number_of(axes);
}

}  // namespace reshard
