#pragma once

#include <memory>

#include "core/transport/comm.hpp"
#include "core/transport/nccl/nccl_api.hpp"

namespace reshard {

/// A communicator of NCCL over all ranks of a Comm, in which this rank has its number of the Comm.
class NcclCommunicator {
 public:
  /// Collective. Either it succeeds on every rank, or every rank throws the same Error: resources
  /// when NCCL refuses, stall when the ranks have not all found each other within
  /// `timeout_seconds`.
  NcclCommunicator(Comm const& comm, std::shared_ptr<NcclApi> nccl, double timeout_seconds);
  /// Takes leave of the other ranks, which do the same at about this time; aborts when that lasts
  /// too long.
  ~NcclCommunicator();
  NcclCommunicator(NcclCommunicator const&) = delete;
  NcclCommunicator& operator=(NcclCommunicator const&) = delete;

  /// Null after abort().
  NcclHandle handle() const { return handle_; }
  NcclApi& nccl() const { return *nccl_; }

  /// Ends the communicator without waiting for other ranks. NCCL may get stuck over this: then it
  /// is left alone after a while.
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
