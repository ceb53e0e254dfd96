#include "pipeline/run/gpu_path.hpp"

#include <sstream>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/transport/nccl/host_identity.hpp"
#include "core/transport/transports.hpp"

namespace reshard {
namespace {

std::string packed(CudaOffer const& offer) {
  return fmt::format("{}\n{}\n{}", host_name(), offer.why_none, fmt::join(offer.ids, "\n"));
}

RankDevices unpacked(int rank, std::string const& text) {
  std::istringstream lines(text);
  RankDevices devices;
  devices.rank = rank;
  std::getline(lines, devices.host);
  std::getline(lines, devices.why_none);
  for (std::string id; std::getline(lines, id);)
    if (!id.empty()) devices.ids.push_back(id);
  return devices;
}

}  // namespace

std::vector<RankDevices> find_devices(Comm const& comm) {
  std::vector<std::string> const all = comm.all_gather(packed(cuda_offer()));
  std::vector<RankDevices> result;
  for (std::size_t r = 0; r < all.size(); ++r)
    result.push_back(unpacked(static_cast<int>(r), all[r]));
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
    fail(
        ErrorKind::resources,
        "{} on {}: {} of its memory are wanted, {} are free. Lower run.device_memory, or free the GPU of other programs.",
        device_->name(), host_name(), human_bytes(bytes), human_bytes(free));
}

DeviceSetup GpuPath::setup(std::uint64_t memory_bytes) {
  return {device_.get(), memory_bytes, {transport_.get(), stream_.get()}};
}

}  // namespace reshard
