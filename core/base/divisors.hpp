#pragma once

#include <string>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard {

/// The divisors of `n` up to 4096, ascending; none of a number below 1.
std::vector<Index> divisors(Index n);

/// "1, 2, 4, 8", with "…" after the sixteenth.
std::string listed_divisors(Index n);

}  // namespace reshard
