#include "core/transport/transports.hpp"

#include <algorithm>
#include <array>

#include "core/transport/mpi_transport.hpp"
#include "core/transport/nccl/host_identity.hpp"
#include "core/transport/nccl/nccl_library.hpp"
#include "core/transport/nccl/nccl_transport.hpp"

namespace reshard {
namespace {

std::unique_ptr<Transport> make_mpi(TransportParts const& parts) {
  return std::make_unique<MpiTransport>(parts.comm);
}

NcclRankFacts facts_of(Device const& device, NcclOffer const& nccl) {
  CudaOffer const cuda = cuda_offer();
  NcclRankFacts facts;
  if (nccl.version == 0) facts.obstacle = nccl.why_none;
  facts.host = host_name();
  facts.host_identity = nccl_host_identity();
  facts.device_id = device.id();
  facts.device_name = device.name();
  facts.nccl_version = nccl.version;
  facts.driver_version = cuda.driver_version;
  facts.runtime_version = cuda.runtime_version;
  return facts;
}

std::unique_ptr<Transport> make_nccl(TransportParts const& parts) {
  RESHARD_EXPECT(parts.device != nullptr && parts.stream != nullptr);
  NcclOffer const nccl = nccl_offer();
  return make_nccl_transport(parts.comm, nccl.version == 0 ? nullptr : open_nccl(),
                             facts_of(*parts.device, nccl), parts.stream, parts.timeout_seconds);
}

constexpr std::array<TransportKind, 2> kinds = {
    {{"mpi", "an MPI library; memory of the host or of the emulated device", false, make_mpi},
     {"nccl", "libnccl.so.2 and a GPU for each rank; memory of GPUs", true, make_nccl}}};

}  // namespace

std::span<TransportKind const> transports() { return kinds; }

TransportKind const& transport_named(std::string_view name) {
  auto const* const found = std::ranges::find(kinds, name, &TransportKind::name);
  RESHARD_EXPECT(found != kinds.end());
  return *found;
}

std::unique_ptr<Transport> make_transport(std::string_view name, TransportParts const& parts) {
  return transport_named(name).make(parts);
}

}  // namespace reshard
