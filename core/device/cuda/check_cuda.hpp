#pragma once

#include <cuda_runtime_api.h>

namespace reshard {

/// Throws when `code` is not cudaSuccess: an Error of kind resources if memory or the device is
/// missing, else of kind internal, with CUDA's text.
void check_cuda(cudaError_t code, char const* call);

}  // namespace reshard
