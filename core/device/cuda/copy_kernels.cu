#include "core/device/cuda/kernels.hpp"
#include "core/device/kernels/copy_variants.hpp"

namespace reshard {
namespace {

template <class Kernel>
__global__ void __launch_bounds__(threads_per_block) copy_runs_kernel(CopyWork work) {
  Kernel::run(work, blockIdx.x, threadIdx.x);
}

template <class Kernel>
__global__ void __launch_bounds__(threads_per_block) copy_tiles_kernel(CopyWork work) {
  __shared__ alignas(16) std::byte memory[tile_memory];
  Tile const tile = tile_of(work, blockIdx.x);
  Kernel::load(work, tile, memory, threadIdx.x);
  __syncthreads();
  Kernel::store(work, tile, memory, threadIdx.x);
}

}  // namespace

cudaError_t load_copy_kernels() {
  cudaError_t code = cudaSuccess;
  auto const note = [&code](cudaError_t one) {
    if (code == cudaSuccess) code = one;
  };
  for (unsigned const width : {16U, 8U, 4U, 2U, 1U}) {
    Launch launch;
    launch.width = static_cast<std::uint8_t>(width);
    for (CopyVariant const variant :
         {CopyVariant::words, CopyVariant::fours, CopyVariant::shifted}) {
      launch.variant = static_cast<std::uint8_t>(variant);
      visit_runs(launch,
                 [&](auto kernel) { note(load_kernel(copy_runs_kernel<decltype(kernel)>)); });
    }
    for (CopyVariant const variant : {CopyVariant::tiles, CopyVariant::packed_tiles}) {
      launch.variant = static_cast<std::uint8_t>(variant);
      visit_tiles(launch,
                  [&](auto kernel) { note(load_kernel(copy_tiles_kernel<decltype(kernel)>)); });
    }
  }
  return code;
}

cudaError_t start_copy_kernel(Launch const& launch, LaunchPlaces const& places,
                              cudaStream_t stream) {
  CopyWork const work = copy_work(launch, places);
  bool known = false;
  if (launch.kind == KernelKind::copy_tiles)
    known = visit_tiles(launch, [&](auto kernel) {
      copy_tiles_kernel<decltype(kernel)><<<launch.blocks, threads_per_block, 0, stream>>>(work);
    });
  else
    known = visit_runs(launch, [&](auto kernel) {
      copy_runs_kernel<decltype(kernel)><<<launch.blocks, threads_per_block, 0, stream>>>(work);
    });
  return known ? cudaGetLastError() : cudaErrorInvalidValue;
}

}  // namespace reshard
