#include "core/base/error.hpp"
#include "core/device/kernels/host_runs.hpp"

namespace reshard {

void run_on_host(Launch const& launch, LaunchPlaces const& places) {
  switch (launch.kind) {
    case KernelKind::copy_runs:
    case KernelKind::copy_tiles: return run_copy_on_host(launch, places);
    case KernelKind::convert:
    case KernelKind::dequantise: return run_value_on_host(launch, places);
    case KernelKind::digest: return run_digest_on_host(launch, places);
  }
  RESHARD_EXPECT(false);
}

}  // namespace reshard
