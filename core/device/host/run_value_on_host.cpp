#include <algorithm>
#include <cstring>

#include "core/base/error.hpp"
#include "core/device/kernels/host_runs.hpp"
#include "core/device/kernels/value_convert.hpp"
#include "core/device/kernels/value_dequantise.hpp"

namespace reshard {
namespace {

/// The atomicMax of a kernel, on the host.
void raise(std::byte* verdict, std::uint64_t mark) {
  std::uint64_t highest = 0;
  std::memcpy(&highest, verdict, sizeof highest);
  highest = std::max(highest, mark);
  std::memcpy(verdict, &highest, sizeof highest);
}

template <class Kernel>
void run_convert(Launch const& launch, LaunchPlaces const& places) {
  for (std::uint32_t block = 0; block < launch.blocks; ++block) {
    auto const& request = descriptor_of_block(descriptors_of<ConvertDescriptor>(launch, places),
                                              launch.descriptors, block);
    for (unsigned thread = 0; thread < threads_per_block; ++thread)
      if (std::uint64_t const mark = Kernel::run(request, places, block, thread); mark != 0)
        raise(places.to + request.verdict, mark);
  }
}

template <class Kernel>
void run_dequantise(Launch const& launch, LaunchPlaces const& places) {
  for (std::uint32_t block = 0; block < launch.blocks; ++block) {
    auto const& request = descriptor_of_block(descriptors_of<DequantiseDescriptor>(launch, places),
                                              launch.descriptors, block);
    for (unsigned thread = 0; thread < threads_per_block; ++thread)
      Kernel::run(request, places, block, thread);
  }
}

}  // namespace

void run_value_on_host(Launch const& launch, LaunchPlaces const& places) {
  bool const known =
      launch.kind == KernelKind::convert
          ? visit_convert(launch.variant,
                          [&](auto kernel) { run_convert<decltype(kernel)>(launch, places); })
          : visit_dequantise(launch.variant, [&](auto kernel) {
              run_dequantise<decltype(kernel)>(launch, places);
            });
  RESHARD_EXPECT(known);
}

}  // namespace reshard
