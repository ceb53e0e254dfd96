#pragma once

#include <random>
#include <string>

#include "tests/core/layout/model.hpp"

namespace reshard::test {

/// A random expression over a random model under random shares, all legal.
struct RandomLayout {
  Model model{};
  std::string text;
  Shares shares;
  bool has_fill_runs = false;
};

RandomLayout random_layout(std::mt19937& random);

}  // namespace reshard::test
