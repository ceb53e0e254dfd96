#pragma once

#include <cstdint>

#include "core/device/program.hpp"

namespace reshard {

/// run_copy_on_host() of the blocks [first, end) only. Pre: launch.kind is copy_runs or copy_tiles;
/// end <= launch.blocks.
void run_copy_blocks_on_host(Launch const& launch, LaunchPlaces const& places, std::uint32_t first,
                             std::uint32_t end);

}  // namespace reshard
