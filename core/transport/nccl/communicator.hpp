#pragma once

#include <memory>

#include "core/transport/comm.hpp"
#include "core/transport/nccl/nccl_api.hpp"

namespace reshard {

/// A communicator of NCCL over all ranks of a Comm, with the rank numbers of the Comm.
class NcclCommunicator {
 public:
  /// Collective. It succeeds on every rank, or every rank throws the same Error: resources if NCCL
  /// refuses, stall if the ranks have not all found each other within `timeout_seconds`.
  NcclCommunicator(Comm const& comm, std::shared_ptr<NcclApi> nccl, double timeout_seconds);
  /// Finalises the communicator together with the other ranks; aborts if that takes too long.
  ~NcclCommunicator();
  NcclCommunicator(NcclCommunicator const&) = delete;
  NcclCommunicator& operator=(NcclCommunicator const&) = delete;

  /// nullptr after abort().
  NcclHandle handle() const { return handle_; }
  NcclApi& nccl() const { return *nccl_; }

  /// Ends the communicator without waiting for other ranks. NCCL may hang here: then its thread is
  /// abandoned after a timeout.
  void abort();

 private:
  bool connect(Comm const& comm, NcclUniqueId const& id);
  bool finalized();

  std::shared_ptr<NcclApi> nccl_;
  double farewell_seconds_;
  NcclHandle handle_ = nullptr;
  bool begun_ = false;
};

}  // namespace reshard
