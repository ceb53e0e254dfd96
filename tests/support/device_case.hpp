#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/device/program.hpp"

namespace reshard::test {

/// A program with its memory on both sides, for any device. Needs no test framework.
struct DeviceCase {
  std::string name;
  Program program;
  std::vector<std::byte> from;
  std::vector<std::byte> to;      ///< before: poison, guard bytes and gaps included
  std::vector<std::byte> wanted;  ///< the same memory afterwards, every byte of it
};

}  // namespace reshard::test
