#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace reshard::test {

cudaError_t start_random_fill(std::byte* at, std::uint64_t bytes, std::uint64_t seed,
                              std::uint64_t mask, cudaStream_t stream);

}  // namespace reshard::test
