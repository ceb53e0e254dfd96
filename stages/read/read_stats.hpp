#pragma once

#include <cstdint>

namespace reshard {

struct ReadStats {
  std::uint64_t bytes = 0;
  std::uint64_t calls = 0;
};

}  // namespace reshard
