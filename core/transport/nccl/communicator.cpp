#include "core/transport/nccl/communicator.hpp"

#include <algorithm>
#include <chrono>
#include <future>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/tables/counted.hpp"
#include "core/base/threads/stall_clock.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

// The longest time that a process waits for NCCL to finalise, or to abort.
constexpr double longest_farewell_seconds = 10;
constexpr std::chrono::microseconds nap{200};

[[noreturn]] void fail_to_start(NcclApi& nccl, std::string_view doing, NcclResult result) {
  fail(ErrorKind::resources,
       "NCCL could not {}: {}. NCCL_DEBUG=WARN shows more; set run.transport = \"mpi\" to continue "
       "without it.",
       doing, describe(nccl, result));
}

NcclUniqueId agreed_id(Comm const& comm, NcclApi& nccl) {
  NcclUniqueId id{};
  together(comm, [&] {
    if (comm.rank() != 0) return;
    auto const answer = nccl.unique_id();
    if (answer.result != NcclResult::success)
      fail_to_start(nccl, "make an id for this job", answer.result);
    id = answer.value;
  });
  std::string const bytes = comm.broadcast({id.data(), id.size()}, 0);
  std::copy(bytes.begin(), bytes.end(), id.begin());
  return id;
}

}  // namespace

NcclCommunicator::NcclCommunicator(Comm const& comm, std::shared_ptr<NcclApi> nccl,
                                   double timeout_seconds)
    : nccl_(std::move(nccl)),
      farewell_seconds_(std::min(timeout_seconds, longest_farewell_seconds)) {
  NcclUniqueId const id = agreed_id(comm, *nccl_);
  StallClock waiting(timeout_seconds);
  try {
    together_step_by_step(comm, 2 * timeout_seconds, [&] {
      if (connect(comm, id)) return true;
      if (waiting.is_over())
        fail(
            ErrorKind::stall,
            "NCCL has not connected the {} within {} s. Name the network that their hosts share in NCCL_SOCKET_IFNAME (NCCL_DEBUG=INFO shows "
            "what was tried), or set run.transport = \"mpi\".",
            counted(comm.size(), "rank"), timeout_seconds);
      return false;
    });
  } catch (...) {
    abort();
    throw;
  }
}

/// One poll; true once this rank is connected.
bool NcclCommunicator::connect(Comm const& comm, NcclUniqueId const& id) {
  if (!std::exchange(begun_, true)) {
    auto const answer = nccl_->begin_init(comm.size(), id, comm.rank());
    handle_ = answer.value;
    if (refused(answer.result)) fail_to_start(*nccl_, "connect the ranks", answer.result);
  }
  auto const answer = nccl_->state(handle_);
  for (NcclResult const result : {answer.result, answer.value})
    if (refused(result)) fail_to_start(*nccl_, "connect the ranks", result);
  return answer.value == NcclResult::success;
}

NcclCommunicator::~NcclCommunicator() {
  if (handle_ == nullptr) return;
  if (finalized())
    nccl_->destroy(std::exchange(handle_, nullptr));
  else
    abort();
}

bool NcclCommunicator::finalized() {
  if (refused(nccl_->begin_finalize(handle_))) return false;
  std::chrono::duration<double> const farewell(farewell_seconds_);
  for (auto const begin = Clock::now(); Clock::now() - begin < farewell;
       std::this_thread::sleep_for(nap)) {
    auto const answer = nccl_->state(handle_);
    if (answer.result != NcclResult::success || refused(answer.value)) return false;
    if (answer.value == NcclResult::success) return true;
  }
  return false;
}

void NcclCommunicator::abort() {
  if (handle_ == nullptr) return;
  // The thread shares ownership of its data: it may outlive this object.
  std::packaged_task<void()> task(
      [nccl = nccl_, handle = std::exchange(handle_, nullptr)] { nccl->abort(handle); });
  std::future<void> const done = task.get_future();
  std::thread thread(std::move(task));
  if (done.wait_for(std::chrono::duration<double>(farewell_seconds_)) == std::future_status::ready)
    thread.join();
  else
    thread.detach();
}

}  // namespace reshard
