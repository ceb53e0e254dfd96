#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/device/device.hpp"

namespace reshard {

/// ncclResult_t, by NCCL's own numbers.
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

/// ncclComm_t; nullptr for none.
using NcclHandle = void*;

/// A result with its value.
template <class T>
struct NcclAnswer {
  NcclResult result = NcclResult::success;
  T value{};
};

/// The functions of NCCL that a transport needs, one by one. No call waits for other ranks:
/// communicators are non-blocking, so calls on them may return in_progress; until state() reports
/// another result, only abort() may be called on the communicator. Calls of one group come from one
/// thread.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  /// In NCCL's encoding: 22809 is 2.28.9.
  virtual NcclAnswer<int> version() = 0;
  /// To be called on one rank, for all.
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

  /// in_progress while a call is being carried out, else success or an earlier error.
  virtual NcclAnswer<NcclResult> state(NcclHandle communicator) = 0;

  /// Begins to finalise; once it is done, destroy() does not wait.
  virtual NcclResult begin_finalize(NcclHandle communicator) = 0;
  virtual NcclResult destroy(NcclHandle communicator) = 0;
  /// Stops all operations and destroys. From any thread, while no other call is under way.
  virtual NcclResult abort(NcclHandle communicator) = 0;

  /// NCCL's text for a result.
  virtual std::string text(NcclResult result) = 0;
  /// NCCL's last error text in this process; may be empty.
  virtual std::string last_error() = 0;
};

/// "2.28.9" of 22809.
std::string nccl_version_text(int version);

/// NCCL's text for a result, its name, and the last error text.
std::string describe(NcclApi& nccl, NcclResult result);

}  // namespace reshard
