#include "core/base/divisors.hpp"

#include <algorithm>

#include "core/base/text/text.hpp"

namespace reshard {

std::vector<Index> divisors(Index n) {
  constexpr Index most = 4096;
  std::vector<Index> found;
  for (Index d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) found.push_back(d);
  return found;
}

std::string listed_divisors(Index n) {
  std::vector<std::string> words;
  for (Index const d : divisors(n)) words.push_back(std::to_string(d));
  return listed(words, 16);
}

}  // namespace reshard
