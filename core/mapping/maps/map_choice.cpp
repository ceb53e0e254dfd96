#include "core/mapping/maps/map_choice.hpp"

#include <algorithm>

#include "core/base/text/text.hpp"

namespace reshard {

bool MapChoice::keeps_f32(std::string_view tensor, bool beside_f16) const {
  auto const matches = [&](std::string const& pattern) { return matches_glob(pattern, tensor); };
  auto const lists = [&](MapFile const& map) {
    return std::ranges::any_of(map.full_precision, matches) ||
           (beside_f16 && std::ranges::any_of(map.f32_beside_f16, matches));
  };
  return lists(core) || (family && lists(*family));
}

}  // namespace reshard
