#pragma once

#include <cuda_runtime_api.h>

#include "core/device/program.hpp"

namespace reshard {

// Put a launch into a stream; the result is that of the start of the kernel.
cudaError_t start_copy_kernel(Launch const& launch, LaunchPlaces const& places, cudaStream_t stream);
cudaError_t start_value_kernel(Launch const& launch, LaunchPlaces const& places, cudaStream_t stream);
cudaError_t start_digest_kernel(Launch const& launch, LaunchPlaces const& places, cudaStream_t stream);

}  // namespace reshard
