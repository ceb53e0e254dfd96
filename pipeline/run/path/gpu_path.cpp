#include "pipeline/run/path/gpu_path.hpp"

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/text/wire.hpp"
#include "core/transport/nccl/host_identity.hpp"
#include "core/transport/transports.hpp"

namespace reshard {

static constexpr auto wire_fields(RankDevices const&) {
  return std::tuple(&RankDevices::host, &RankDevices::why_none, &RankDevices::ids);
}

std::vector<RankDevices> find_devices(Comm const& comm) {
  CudaOffer const offer = cuda_offer();
  RankDevices const mine{.host = host_name(), .ids = offer.ids, .why_none = offer.why_none};
  std::vector<RankDevices> result;
  for (std::string const& packed : comm.all_gather(WireWriter().put(mine).bytes())) {
    result.push_back(WireReader(packed, "the devices of a rank").all<RankDevices>());
    result.back().rank = static_cast<int>(result.size()) - 1;
  }
  return result;
}

GpuPath::GpuPath(PathChoice const& choice, int device_number, Comm const& comm,
                 double timeout_seconds) {
  together(comm, [&] {
    device_ = choice.device == DeviceChoice::cuda ? open_cuda_device(device_number)
                                                  : make_emulated_device();
  });
  if (!choice.exchanging) return;
  TransportKind const& kind =
      transport_named(choice.transport == TransportChoice::mpi ? "mpi" : "nccl");
  if (kind.takes_stream) together(comm, [&] { stream_ = device_->new_stream(); });
  transport_ = kind.make({comm, device_.get(), stream_.get(), timeout_seconds});
}

void GpuPath::expect_memory(std::uint64_t bytes) const {
  if (std::uint64_t const free = device_->free_bytes(); free < bytes)
    fail(ErrorKind::resources,
         "{} on {}: {} of its memory are needed, {} are free. Lower run.device_memory, or free the "
         "GPU of other programs.",
         device_->name(), host_name(), human_bytes(bytes), human_bytes(free));
}

DeviceSetup GpuPath::setup(std::uint64_t memory_bytes) {
  return {device_.get(), memory_bytes, {transport_.get(), stream_.get()}};
}

}  // namespace reshard
