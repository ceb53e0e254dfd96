#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "core/transport/nccl/communicator.hpp"
#include "core/transport/nccl/rank_facts.hpp"
#include "core/transport/transport.hpp"

namespace reshard {

/// Messages in device memory, over NCCL. The messages of a post travel as one group, whose place in
/// the stream is that of the post; they land together.
///
/// NCCL connects two ranks when they first have a group in common, and it puts one group after the
/// other into the stream, from a thread of its own. So poll() may hold back a post until the one
/// before it is in the stream. Therefore the stream belongs to the transport: the caller may only
/// add waits for events of other streams, before a post that needs them, and begins work on
/// received bytes once poll() has reported them.
class NcclTransport final : public Transport {
 public:
  /// `stream` outlives the transport; every call comes from a thread whose current device is that
  /// of the stream.
  NcclTransport(std::unique_ptr<NcclCommunicator> communicator, int rank, int ranks,
                DeviceStream& stream);
  ~NcclTransport() override;
  NcclTransport(NcclTransport const&) = delete;
  NcclTransport& operator=(NcclTransport const&) = delete;

  void post(std::span<FlatMessage const> receives, std::span<FlatMessage const> sends,
            std::size_t first_number) override;
  void poll(std::vector<Landed>& landed) override;
  bool one_group() const override { return true; }
  std::uint64_t bytes_landed() const override { return bytes_landed_; }
  std::vector<int> awaited_peers() const override;
  void cancel() override;

 private:
  struct Group {
    std::vector<FlatMessage>
        receives;  ///< in the order in which NCCL gets them, without empty ones
    std::vector<FlatMessage> sends;
    std::vector<Landed> reports;
    std::unique_ptr<DeviceEvent> done;  ///< nullptr while it is not in the stream
  };

  void advance();
  void launch(Group const& group);
  NcclResult state();
  void settle_for_a_moment();
  void check(NcclResult result, std::string_view doing) const;

  std::unique_ptr<NcclCommunicator> communicator_;  // nullptr after cancel()
  int rank_;
  int ranks_;
  DeviceStream& stream_;
  std::deque<Group> groups_;  // oldest first: in the stream, then at most one that is being put
                              // there, then those held back
  std::size_t in_stream_ = 0;
  bool launching_ = false;
  std::vector<Landed> at_once_;  // empty messages of posts that have no other
  std::uint64_t bytes_landed_ = 0;
};

/// Collective: checks with all ranks that NCCL can work, then connects them. Every rank throws the
/// same Error: resources for a missing GPU or library, two ranks with one GPU, versions that differ
/// or a refusal of NCCL; stall if the ranks do not find each other.
///
/// `nccl` and `stream` may be nullptr on a rank whose facts name an obstacle. The calling thread's
/// current device is that of the stream (any call of Device makes it so) when this and the
/// transport are called.
std::unique_ptr<Transport> make_nccl_transport(Comm const& comm, std::shared_ptr<NcclApi> nccl,
                                               NcclRankFacts const& mine, DeviceStream* stream,
                                               double timeout_seconds);

}  // namespace reshard
