#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/device/device.hpp"

namespace reshard {

/// What NCCL's functions return, by NCCL's own numbers.
enum class NcclResult : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

/// Whether it is an error.
constexpr bool refused(NcclResult result) {
  return result != NcclResult::success && result != NcclResult::in_progress;
}

using NcclUniqueId = std::array<char, 128>;

/// ncclComm_t; null for none.
using NcclHandle = void*;

/// A result and what came with it.
template <class T>
struct NcclAnswer {
  NcclResult result = NcclResult::success;
  T value{};
};

/// The functions of NCCL that a transport needs, one by one. No call waits for other ranks:
/// communicators are made non-blocking, so calls on them may answer in_progress, and then state()
/// says when they are done; until it does, no other call on the communicator is allowed but
/// abort(). Calls of one group come from one thread.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  /// As NCCL counts: 22809 is 2.28.9.
  virtual NcclAnswer<int> version() = 0;
  /// To be made on one rank, for all.
  virtual NcclAnswer<NcclUniqueId> unique_id() = 0;
  /// Begins to connect this rank, on the thread's current device. There is a handle unless the
  /// result is an error.
  virtual NcclAnswer<NcclHandle> begin_init(int ranks, NcclUniqueId const& id, int rank) = 0;

  virtual NcclResult group_start() = 0;
  virtual NcclResult send(std::byte const* from, std::uint64_t bytes, int peer,
                          NcclHandle communicator, DeviceStream& stream) = 0;
  virtual NcclResult receive(std::byte* to, std::uint64_t bytes, int peer, NcclHandle communicator,
                             DeviceStream& stream) = 0;
  /// The messages since group_start() are in their stream when this, or state() after in_progress,
  /// is success.
  virtual NcclResult group_end() = 0;

  /// in_progress while a call is being carried out, else success or an error of the past.
  virtual NcclAnswer<NcclResult> state(NcclHandle communicator) = 0;

  /// Begins to take leave of the other ranks; when it is done, destroy() does not wait.
  virtual NcclResult begin_finalize(NcclHandle communicator) = 0;
  virtual NcclResult destroy(NcclHandle communicator) = 0;
  /// Stops everything and destroys. From any thread, while no other call is under way.
  virtual NcclResult abort(NcclHandle communicator) = 0;

  /// NCCL's words for a result.
  virtual std::string text(NcclResult result) = 0;
  /// The last complaint of NCCL in this process; may be empty.
  virtual std::string last_error() = 0;
};

/// "2.28.9" of 22809.
std::string nccl_version_text(int version);

/// NCCL's words for a result, its name, and the last complaint.
std::string describe(NcclApi& nccl, NcclResult result);

}  // namespace reshard
