#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace reshard {

/// "1 file", "3 files": a number of things whose plural ends in s.
template <std::integral Count>
std::string counted(Count count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

/// The verb of a sentence about a number of things: `one` with 1, else `many`.
template <std::integral Count>
std::string_view agreeing(Count count, std::string_view one, std::string_view many) {
  return count == 1 ? one : many;
}

}  // namespace reshard
