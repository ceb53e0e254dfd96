#pragma once

#include "core/device/program.hpp"

namespace reshard {

// run_on_host() of each family of kernels.
void run_copy_on_host(Launch const& launch, LaunchPlaces const& places);
void run_value_on_host(Launch const& launch, LaunchPlaces const& places);
void run_digest_on_host(Launch const& launch, LaunchPlaces const& places);

}  // namespace reshard
