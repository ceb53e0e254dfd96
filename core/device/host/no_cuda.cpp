#include "core/base/error.hpp"
#include "core/device/device.hpp"

namespace reshard {

CudaOffer cuda_offer() {
  CudaOffer offer;
  offer.why_none = "this program was built without CUDA";
  return offer;
}

std::unique_ptr<Device> open_cuda_device(int number) {
  fail(
      ErrorKind::resources,
      "GPU {} cannot be used: this program was built without CUDA. Set run.device to auto or host, or build with CUDA.",
      number);
}

ProfilerRange::ProfilerRange(char const*) {}
ProfilerRange::~ProfilerRange() = default;

}  // namespace reshard
