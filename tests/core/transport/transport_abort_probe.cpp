// Ranks that exchange over a transport, one of which goes wrong: the test looks at the exit code of
// the whole job and at what is said.
//   transport_abort_probe mpi|nccl fail|stall|lost|deaf

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "core/transport/monitor/patience.hpp"
#include "core/transport/mpi_transport.hpp"
#include "core/transport/nccl/nccl_transport.hpp"
#include "tests/support/fake_nccl.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t bytes = 1 << 20;
constexpr int odd_one = 1;

/// One message to each other rank and from it, again and again.
class Exchanging {
 public:
  Exchanging(Comm const& comm, std::string const& kind, std::string const& what)
      : comm_(comm), what_(what) {
    if (kind == "mpi") {
      transport_ = std::make_unique<MpiTransport>(comm);
      return;
    }
    FakeNcclFaults faults;
    if (what == "lost" && odd()) faults.good_groups = 10;
    NcclRankFacts facts;
    facts.host = facts.host_identity = "here";
    facts.device_id = device_->id();
    facts.nccl_version = 22809;
    nccl_ = std::make_shared<FakeNccl>(faults);
    transport_ = make_nccl_transport(comm, nccl_, facts, stream_.get(), 60);
  }

  void round(int number) {
    if (odd() && number == 20 && what_ == "fail")
      fail(ErrorKind::source, "what is to be sent cannot be read");
    if (odd() && number == 20 && what_ == "stall")
      std::this_thread::sleep_for(std::chrono::seconds(60));
    std::vector<FlatMessage> receives;
    std::vector<FlatMessage> sends;
    for (int peer = 0; peer < comm_.size(); ++peer) {
      if (peer == comm_.rank()) continue;
      receives.push_back({peer, memory_->data() + static_cast<std::size_t>(peer) * bytes, bytes});
      sends.push_back(
          {peer, memory_->data() + static_cast<std::size_t>(comm_.rank()) * bytes, bytes});
    }
    transport_->post(receives, sends, 0);
    std::vector<Landed> landed;
    for (patience_.begin(); landed.size() < receives.size() + sends.size();) {
      std::size_t const before = landed.size();
      transport_->poll(landed);
      if (landed.size() > before)
        patience_.begin();
      else if (!patience_.wait())
        throw stalled(patience_.timeout_seconds(), awaited_text(transport_->awaited_peers()));
    }
  }

  /// As a stage does it.
  [[noreturn]] void end(Error const& error) {
    transport_->cancel();
    comm_.abort(error);
  }

 private:
  bool odd() const { return comm_.rank() == odd_one; }

  Comm const& comm_;
  std::string what_;
  Patience patience_{what_ == "stall" ? 1.0 : 100.0, {}};
  std::unique_ptr<Device> device_ = make_emulated_device();
  std::unique_ptr<DeviceStream> stream_ = device_->new_stream();
  std::unique_ptr<DeviceMemory> memory_ =
      device_->allocate(static_cast<std::uint64_t>(comm_.size()) * bytes);
  std::shared_ptr<FakeNccl> nccl_;
  std::unique_ptr<Transport> transport_;
};

/// A rank that no other hears of while all agree.
void agree_without_the_odd_one(Comm const& comm) {
  if (comm.rank() == odd_one) std::this_thread::sleep_for(std::chrono::seconds(60));
  together_step_by_step(comm, 1.0, [] { return true; });
}

void run(std::string const& kind, std::string const& what) {
  Comm const comm = Comm::world();
  if (what == "deaf") return agree_without_the_odd_one(comm);
  Exchanging exchanging(comm, kind, what);
  std::optional<Error> const error = capture([&] {
    for (int number = 0;; ++number) exchanging.round(number);
  });
  exchanging.end(*error);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  if (argc != 3) return 2;
  reshard::run(argv[1], argv[2]);
  std::fputs("the exchange returned\n", stderr);
  return 1;
}
