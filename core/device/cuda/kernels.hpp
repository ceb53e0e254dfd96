#pragma once

#include <cuda_runtime_api.h>

#include "core/device/program.hpp"

namespace reshard {

// Load the code of every kernel onto the current device. CUDA would do so at the first launch of
// each, block the device meanwhile, and report only then that the program has no code for this
// device.
cudaError_t load_copy_kernels();
cudaError_t load_value_kernels();
cudaError_t load_digest_kernels();

/// Loads the code of one kernel.
template <class Kernel>
cudaError_t load_kernel(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<void const*>(kernel));
}

// Put a launch into a stream and return the result of the kernel launch.
cudaError_t start_copy_kernel(Launch const& launch, LaunchPlaces const& places,
                              cudaStream_t stream);
cudaError_t start_value_kernel(Launch const& launch, LaunchPlaces const& places,
                               cudaStream_t stream);
cudaError_t start_digest_kernel(Launch const& launch, LaunchPlaces const& places,
                                cudaStream_t stream);

}  // namespace reshard
