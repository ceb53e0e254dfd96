#include "tests/gpu/random_fill_kernel.hpp"
#include "tests/gpu/random_words.hpp"

namespace reshard::test {
namespace {

constexpr unsigned fill_threads = 256;
constexpr unsigned fill_blocks = 4096;

__global__ void random_fill(std::uint64_t* words, std::uint64_t count, std::uint64_t seed,
                            std::uint64_t mask) {
  std::uint64_t const step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = random_word(seed, i) & mask;
}

}  // namespace

cudaError_t start_random_fill(std::byte* at, std::uint64_t bytes, std::uint64_t seed,
                              std::uint64_t mask, cudaStream_t stream) {
  cudaGetLastError();  // of earlier calls: an event that was not ready yet counts as one
  random_fill<<<fill_blocks, fill_threads, 0, stream>>>(reinterpret_cast<std::uint64_t*>(at),
                                                        bytes / 8, seed, mask);
  return cudaGetLastError();
}

}  // namespace reshard::test
