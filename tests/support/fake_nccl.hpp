#pragma once

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <vector>

#include <mpi.h>

#include "core/device/host/emulated_device.hpp"
#include "core/transport/comm.hpp"
#include "core/transport/nccl/nccl_api.hpp"

namespace reshard {

/// What goes wrong, or slowly, in this rank's FakeNccl.
struct FakeNcclFaults {
  NcclResult unique_id = NcclResult::success;
  NcclResult begin_init = NcclResult::success;
  NcclResult connecting = NcclResult::success;  ///< what state() says instead of "connected"
  bool never_begins = false;  ///< the others wait for this rank in vain while they connect
  std::chrono::microseconds connecting_time{
      0};  ///< for which state() is in_progress after begin_init()
  std::chrono::microseconds launching_time{0};  ///< and after each group_end()
  NcclResult send = NcclResult::success;
  NcclResult group_end = NcclResult::success;
  int good_groups =
      std::numeric_limits<int>::max();  ///< after so many groups, state() says `later`
  NcclResult later = NcclResult::remote_error;
  int moving_groups = std::numeric_limits<int>::max();  ///< groups after these stay in the stream
                                                        ///< for ever and move nothing
  bool never_finalizes = false;
};

/// NCCL's part in the tests: messages of emulated devices, carried by MPI on a communicator of its
/// own, in the order of the stream. Strict where NCCL is: a call on a communicator that is still
/// busy is refused, and so is a message outside of a group.
class FakeNccl final : public NcclApi {
 public:
  /// Collective. Made on every rank of the world, and destroyed likewise.
  explicit FakeNccl(FakeNcclFaults const& faults = {});
  ~FakeNccl() override;
  FakeNccl(FakeNccl const&) = delete;
  FakeNccl& operator=(FakeNccl const&) = delete;

  NcclAnswer<int> version() override { return {NcclResult::success, 22809}; }
  NcclAnswer<NcclUniqueId> unique_id() override;
  NcclAnswer<NcclHandle> begin_init(int ranks, NcclUniqueId const& id, int rank) override;
  NcclResult group_start() override;
  NcclResult send(std::byte const* from, std::uint64_t bytes, int peer, NcclHandle communicator,
                  DeviceStream& stream) override;
  NcclResult receive(std::byte* to, std::uint64_t bytes, int peer, NcclHandle communicator,
                     DeviceStream& stream) override;
  NcclResult group_end() override;
  NcclAnswer<NcclResult> state(NcclHandle communicator) override;
  NcclResult begin_finalize(NcclHandle communicator) override;
  NcclResult destroy(NcclHandle communicator) override;
  NcclResult abort(NcclHandle communicator) override;
  std::string text(NcclResult result) override;
  std::string last_error() override { return complaint_; }

  FakeNcclFaults& faults() { return faults_; }
  /// Calls so far that NCCL would not have allowed; and what was called.
  int misuses() const { return misuses_; }
  int groups() const { return groups_; }
  int aborts() const { return aborts_; }
  int destroyed() const { return destroyed_; }

 private:
  struct Message {
    std::byte* at = nullptr;
    std::uint64_t bytes = 0;
    int peer = 0;
    bool receive = false;
  };
  struct Group {
    std::vector<Message> messages;
    EmulatedStream* stream = nullptr;
    bool moves = true;
  };
  /// What a handle points to.
  struct Communicator {
    int tag = 0;
    std::vector<MPI_Request> greetings;  ///< from and to the other ranks, while it connects
    std::chrono::steady_clock::time_point ready;  // not before
    bool connected = false;
    bool finalizing = false;
    int groups = 0;
    std::unique_ptr<Group> launching;
    std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
    std::shared_ptr<int> in_stream =
        std::make_shared<int>(0);  // every group in a stream has a share of it
  };

  static Communicator& of(NcclHandle handle) { return *static_cast<Communicator*>(handle); }
  NcclResult add(Message const& message, NcclHandle handle, DeviceStream& stream);
  NcclResult misuse(std::string why);
  bool busy(Communicator const& communicator) const;
  bool greeted(Communicator& communicator);
  void put_into_stream(Communicator& communicator);
  static void carry(MPI_Comm comm, int tag, Group const& group, std::atomic<bool> const& aborted);

  MPI_Comm comm_ = MPI_COMM_NULL;
  FakeNcclFaults faults_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::unique_ptr<Group> open_;  // between group_start and group_end
  Communicator* open_for_ = nullptr;
  int ids_ = 0;
  int misuses_ = 0;
  int groups_ = 0;
  std::atomic<int> aborts_ = 0;
  int destroyed_ = 0;
  std::string complaint_;
};

}  // namespace reshard
