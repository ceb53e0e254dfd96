#pragma once

#include <span>
#include <string>

#include <fmt/ranges.h>

#include "core/base/tables/integers.hpp"

namespace reshard {

/// "[2, 3]"
inline std::string shape_text(std::span<Index const> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace reshard
