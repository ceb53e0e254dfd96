#include "core/device/cuda/kernels.hpp"
#include "core/device/kernels/digest_pieces.hpp"
#include "core/device/kernels/request_blocks.hpp"

namespace reshard {
namespace {

__device__ DigestTables const tables = make_digest_tables();

__global__ void __launch_bounds__(threads_per_block)
    digest_kernel(Launch launch, LaunchPlaces places) {
  __shared__ DigestShared shared;
  DigestDescriptor const& piece = descriptor_of_block(
      descriptors_of<DigestDescriptor>(launch, places), launch.descriptors, blockIdx.x);
  digest_begin(tables, piece, shared, threadIdx.x);
  __syncthreads();
  digest_lanes(tables, piece, places, shared, blockIdx.x, threadIdx.x);
  __syncthreads();
  digest_teams(tables, piece, places, shared, blockIdx.x, threadIdx.x);
  __syncthreads();
  digest_gather(shared, threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0)
    atomicXor(reinterpret_cast<unsigned long long*>(places.to + piece.sum),
              static_cast<unsigned long long>(digest_share(shared)));
}

}  // namespace

cudaError_t load_digest_kernels() { return load_kernel(digest_kernel); }

cudaError_t start_digest_kernel(Launch const& launch, LaunchPlaces const& places,
                                cudaStream_t stream) {
  digest_kernel<<<launch.blocks, threads_per_block, 0, stream>>>(launch, places);
  return cudaGetLastError();
}

}  // namespace reshard
