#include "core/device/cuda/kernels.hpp"
#include "core/device/kernels/value_convert.hpp"
#include "core/device/kernels/value_dequantise.hpp"

namespace reshard {
namespace {

template <class Kernel>
__global__ void __launch_bounds__(threads_per_block)
    convert_kernel(Launch launch, LaunchPlaces places) {
  auto const& request = descriptor_of_block(descriptors_of<ConvertDescriptor>(launch, places),
                                            launch.descriptors, blockIdx.x);
  std::uint64_t const mark = Kernel::run(request, places, blockIdx.x, threadIdx.x);
  auto* const verdict = reinterpret_cast<unsigned long long*>(places.to + request.verdict);
  // If many elements are inexact, most threads find an earlier one recorded.
  if (mark != 0 && mark > *static_cast<unsigned long long volatile*>(verdict))
    atomicMax(verdict, static_cast<unsigned long long>(mark));
}

template <class Kernel>
__global__ void __launch_bounds__(threads_per_block)
    dequantise_kernel(Launch launch, LaunchPlaces places) {
  auto const& request = descriptor_of_block(descriptors_of<DequantiseDescriptor>(launch, places),
                                            launch.descriptors, blockIdx.x);
  Kernel::run(request, places, blockIdx.x, threadIdx.x);
}

}  // namespace

cudaError_t load_value_kernels() {
  cudaError_t code = cudaSuccess;
  auto const note = [&code](cudaError_t one) {
    if (code == cudaSuccess) code = one;
  };
  for (unsigned v = 0;
       visit_convert(v, [&](auto kernel) { note(load_kernel(convert_kernel<decltype(kernel)>)); });)
    ++v;
  for (unsigned v = 0; visit_dequantise(
           v, [&](auto kernel) { note(load_kernel(dequantise_kernel<decltype(kernel)>)); });)
    ++v;
  return code;
}

cudaError_t start_value_kernel(Launch const& launch, LaunchPlaces const& places,
                               cudaStream_t stream) {
  bool known = false;
  if (launch.kind == KernelKind::convert)
    known = visit_convert(launch.variant, [&](auto kernel) {
      convert_kernel<decltype(kernel)>
          <<<launch.blocks, threads_per_block, 0, stream>>>(launch, places);
    });
  else
    known = visit_dequantise(launch.variant, [&](auto kernel) {
      dequantise_kernel<decltype(kernel)>
          <<<launch.blocks, threads_per_block, 0, stream>>>(launch, places);
    });
  return known ? cudaGetLastError() : cudaErrorInvalidValue;
}

}  // namespace reshard
