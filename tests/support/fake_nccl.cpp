#include "tests/support/fake_nccl.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/base/tables/integers.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int first_tag = 100;
constexpr std::uint64_t largest_part = std::uint64_t{1} << 30;
constexpr std::chrono::microseconds nap{50};

void cancel_all(std::vector<MPI_Request>& requests, std::vector<char> const& receives) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    if (receives[i] != 0) MPI_Cancel(&requests[i]);
    MPI_Request_free(&requests[i]);
  }
}

}  // namespace

FakeNccl::FakeNccl(FakeNcclFaults const& faults) : faults_(faults) {
  if (Comm::world().size() > 1)
    check_mpi(MPI_Comm_dup(Comm::world().handle(), &comm_), "MPI_Comm_dup");
}

FakeNccl::~FakeNccl() {
  for (auto const& one : communicators_) *one->aborted = true;
  for (auto const& one : communicators_)
    while (one->in_stream.use_count() > 1) std::this_thread::sleep_for(nap);
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

NcclResult FakeNccl::misuse(std::string why) {
  ++misuses_;
  complaint_ = std::move(why);
  return NcclResult::invalid_usage;
}

NcclAnswer<NcclUniqueId> FakeNccl::unique_id() {
  NcclUniqueId id{};
  int const tag = first_tag + ids_++;
  std::memcpy(id.data(), &tag, sizeof tag);
  return {faults_.unique_id, id};
}

NcclAnswer<NcclHandle> FakeNccl::begin_init(int ranks, NcclUniqueId const& id, int rank) {
  if (faults_.begin_init != NcclResult::success) {
    complaint_ = "begin_init was told to fail";
    return {faults_.begin_init, nullptr};
  }
  Communicator& one = *communicators_.emplace_back(std::make_unique<Communicator>());
  std::memcpy(&one.tag, id.data(), sizeof one.tag);
  one.ready = Clock::now() + faults_.connecting_time;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank || faults_.never_begins) continue;
    one.greetings.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Irecv(nullptr, 0, MPI_BYTE, peer, one.tag, comm_, &one.greetings.back()),
              "MPI_Irecv");
    one.greetings.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, peer, one.tag, comm_, &one.greetings.back()),
              "MPI_Isend");
  }
  return {NcclResult::in_progress, &one};
}

bool FakeNccl::greeted(Communicator& communicator) {
  if (communicator.greetings.empty()) return !faults_.never_begins;
  int all = 0;
  check_mpi(MPI_Testall(narrow<int>(communicator.greetings.size()), communicator.greetings.data(),
                        &all, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  return all != 0 && !faults_.never_begins;
}

bool FakeNccl::busy(Communicator const& communicator) const {
  return !communicator.connected || communicator.launching != nullptr;
}

NcclResult FakeNccl::group_start() {
  if (open_ != nullptr) return misuse("a group in a group");
  open_ = std::make_unique<Group>();
  open_for_ = nullptr;
  return NcclResult::success;
}

NcclResult FakeNccl::add(Message const& message, NcclHandle handle, DeviceStream& stream) {
  Communicator& communicator = of(handle);
  if (open_ == nullptr) return misuse("a message outside of a group");
  if (busy(communicator)) return misuse("a message while the communicator was busy");
  if (open_for_ != nullptr && open_for_ != &communicator)
    return misuse("messages of two communicators in one group");
  if (message.bytes == 0) return misuse("an empty message");
  open_for_ = &communicator;
  open_->stream = &dynamic_cast<EmulatedStream&>(stream);
  open_->messages.push_back(message);
  return NcclResult::success;
}

NcclResult FakeNccl::send(std::byte const* from, std::uint64_t bytes, int peer,
                          NcclHandle communicator, DeviceStream& stream) {
  if (faults_.send != NcclResult::success) return faults_.send;
  return add({const_cast<std::byte*>(from), bytes, peer, false}, communicator, stream);
}

NcclResult FakeNccl::receive(std::byte* to, std::uint64_t bytes, int peer, NcclHandle communicator,
                             DeviceStream& stream) {
  return add({to, bytes, peer, true}, communicator, stream);
}

NcclResult FakeNccl::group_end() {
  if (open_ == nullptr) return misuse("the end of no group");
  auto group = std::move(open_);
  if (open_for_ == nullptr) return NcclResult::success;
  if (faults_.group_end != NcclResult::success) return faults_.group_end;
  ++groups_;
  group->moves = open_for_->groups++ < faults_.moving_groups;
  open_for_->launching = std::move(group);
  open_for_->ready = Clock::now() + faults_.launching_time;
  return NcclResult::in_progress;
}

NcclAnswer<NcclResult> FakeNccl::state(NcclHandle handle) {
  Communicator& communicator = of(handle);
  bool const connecting = !communicator.connected;
  if (communicator.finalizing && faults_.never_finalizes)
    return {NcclResult::success, NcclResult::in_progress};
  if (communicator.groups > faults_.good_groups) return {NcclResult::success, faults_.later};
  if (busy(communicator) && Clock::now() < communicator.ready)
    return {NcclResult::success, NcclResult::in_progress};
  if (connecting && faults_.connecting != NcclResult::success)
    return {NcclResult::success, faults_.connecting};
  if (connecting && !greeted(communicator)) return {NcclResult::success, NcclResult::in_progress};
  communicator.connected = true;
  if (communicator.launching != nullptr) put_into_stream(communicator);
  return {NcclResult::success, NcclResult::success};
}

void FakeNccl::put_into_stream(Communicator& communicator) {
  std::shared_ptr<Group> const group = std::move(communicator.launching);
  group->stream->run([comm = comm_, tag = communicator.tag, group, aborted = communicator.aborted,
                      share = communicator.in_stream] { carry(comm, tag, *group, *aborted); });
}

/// In the thread of the stream.
void FakeNccl::carry(MPI_Comm comm, int tag, Group const& group, std::atomic<bool> const& aborted) {
  std::vector<MPI_Request> requests;
  std::vector<char> receives;
  for (Message const& message : group.messages)
    for (std::uint64_t done = 0; group.moves && !aborted && done < message.bytes;
         done += largest_part) {
      int const bytes = narrow<int>(std::min(largest_part, message.bytes - done));
      requests.push_back(MPI_REQUEST_NULL);
      receives.push_back(message.receive ? 1 : 0);
      if (message.receive)
        MPI_Irecv(message.at + done, bytes, MPI_BYTE, message.peer, tag, comm, &requests.back());
      else
        MPI_Isend(message.at + done, bytes, MPI_BYTE, message.peer, tag, comm, &requests.back());
    }
  for (int all = requests.empty() ? 1 : 0;;) {
    if (!requests.empty())
      MPI_Testall(narrow<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE);
    if (all != 0 && group.moves) return;
    if (aborted || group.stream->stopping()) return cancel_all(requests, receives);
    std::this_thread::sleep_for(nap);
  }
}

NcclResult FakeNccl::begin_finalize(NcclHandle handle) {
  if (busy(of(handle))) return misuse("the end of a communicator that was busy");
  of(handle).finalizing = true;
  return NcclResult::in_progress;
}

NcclResult FakeNccl::destroy(NcclHandle handle) {
  if (!of(handle).finalizing) return misuse("a communicator destroyed that was not finalised");
  ++destroyed_;
  return NcclResult::success;
}

NcclResult FakeNccl::abort(NcclHandle handle) {
  Communicator& communicator = of(handle);
  ++aborts_;
  *communicator.aborted = true;
  std::vector<char> receives(communicator.greetings.size());
  for (std::size_t i = 0; i < receives.size(); i += 2) receives[i] = 1;
  cancel_all(communicator.greetings, receives);
  communicator.greetings.clear();
  while (communicator.in_stream.use_count() > 1) std::this_thread::sleep_for(nap);
  return NcclResult::success;
}

std::string FakeNccl::text(NcclResult result) {
  return fmt::format("result {} of the stand-in", static_cast<int>(result));
}

}  // namespace reshard
