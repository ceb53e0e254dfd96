// Transports that can be tested everywhere: MPI, and NCCL's with a stand-in for NCCL on an emulated
// device.

#include <cstring>

#include "core/transport/nccl/nccl_transport.hpp"
#include "core/transport/transports.hpp"
#include "tests/core/transport/device_site.hpp"
#include "tests/support/fake_nccl.hpp"

namespace reshard {
namespace {

class MpiSite final : public TransportSite {
 public:
  Transport& transport() override { return *transport_; }
  std::byte* allocate(std::uint64_t bytes) override { return memory_.emplace_back(bytes).data(); }
  void write(std::byte* to, std::span<std::byte const> bytes) override {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  }
  std::vector<std::byte> read(std::byte* from, std::uint64_t bytes) override {
    return {from, from + bytes};
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::unique_ptr<Transport> transport_ = make_transport("mpi", {.comm = Comm::world()});
};

class FakeNcclSite final : public DeviceSite {
 public:
  explicit FakeNcclSite(FakeNcclFaults const& faults) : DeviceSite(make_emulated_device()) {
    Comm const comm = Comm::world();
    NcclRankFacts facts;
    facts.host = "here";
    facts.host_identity = "here";
    facts.device_id = device_->id();
    facts.device_name = device_->name();
    facts.nccl_version = 22809;
    transport_ =
        make_nccl_transport(comm, std::make_shared<FakeNccl>(faults), facts, stream_.get(), 60);
  }
};

}  // namespace

std::vector<std::string> site_names() { return {"mpi", "nccl_stand_in", "slow_nccl_stand_in"}; }

std::unique_ptr<TransportSite> make_site(std::string const& name, std::string&) {
  if (name == "mpi") return std::make_unique<MpiSite>();
  FakeNcclFaults faults;
  // So slow that posts are held back until a poll finds the one before them in the stream.
  if (name == "slow_nccl_stand_in")
    faults.connecting_time = faults.launching_time = std::chrono::milliseconds(3);
  return std::make_unique<FakeNcclSite>(faults);
}

}  // namespace reshard
