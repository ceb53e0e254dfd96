// NCCL's transport on GPUs. Where there are fewer of them than ranks, each process poses as a host
// of its own, and NCCL goes over sockets on loopback: that says whether it works, not how fast it
// is.

#include <cstdlib>

#include "core/transport/nccl/host_identity.hpp"
#include "core/transport/nccl/nccl_library.hpp"
#include "core/transport/nccl/nccl_transport.hpp"
#include "tests/core/transport/device_site.hpp"

namespace reshard {
namespace {

class NcclSite final : public DeviceSite {
 public:
  NcclSite(Comm const& comm, CudaOffer const& cuda, NcclOffer const& nccl)
      : DeviceSite(open_cuda_device(comm.rank() % cuda.devices)) {
    NcclRankFacts facts;
    facts.host = host_name();
    facts.host_identity = nccl_host_identity();
    facts.device_id = device_->id();
    facts.device_name = device_->name();
    facts.nccl_version = nccl.version;
    facts.driver_version = cuda.driver_version;
    facts.runtime_version = cuda.runtime_version;
    transport_ = make_nccl_transport(comm, open_nccl(), facts, stream_.get(), 60);
  }
};

}  // namespace

std::vector<std::string> site_names() { return {"nccl"}; }

std::unique_ptr<TransportSite> make_site(std::string const&, std::string& why_not) {
  Comm const comm = Comm::world();
  CudaOffer const cuda = cuda_offer();
  NcclOffer const nccl = nccl_offer();
  std::string const mine = cuda.devices == 0 ? cuda.why_none : nccl.why_none;
  for (std::string const& reason : comm.all_gather(mine))
    if (!reason.empty()) why_not = reason;
  if (!why_not.empty()) return nullptr;
  if (comm.min(cuda.devices) < comm.size()) {
    ::setenv("NCCL_HOSTID", fmt::format("rank{}", comm.rank()).c_str(), 0);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    ::setenv("NCCL_NET", "Socket", 0);
    ::setenv("NCCL_IB_DISABLE", "1", 0);
  }
  return std::make_unique<NcclSite>(comm, cuda, nccl);
}

}  // namespace reshard
