#include "core/transport/nccl/nccl_transport.hpp"

#include <chrono>
#include <set>
#include <utility>

#include <fmt/ranges.h>
#include <sched.h>

#include "core/transport/monitor/patience.hpp"
#include "core/transport/ring_order.hpp"

namespace reshard {
namespace {

// NCCL puts a group into the stream within this time when the ranks are connected: soon enough to
// wait for, so that the caller's waits for its next post do not get in front of the group.
constexpr std::chrono::microseconds launch_time{500};

}  // namespace

NcclTransport::NcclTransport(std::unique_ptr<NcclCommunicator> communicator, int rank, int ranks,
                             DeviceStream& stream)
    : communicator_(std::move(communicator)), rank_(rank), ranks_(ranks), stream_(stream) {}

NcclTransport::~NcclTransport() {
  if (!groups_.empty()) cancel();
}

void NcclTransport::post(std::span<FlatMessage const> receives, std::span<FlatMessage const> sends,
                         std::size_t first_number) {
  RESHARD_EXPECT(communicator_ != nullptr);
  Group group;
  for (std::size_t r = 0; r < receives.size(); ++r)
    group.reports.push_back({first_number + r, true, receives[r].bytes});
  for (std::size_t s = 0; s < sends.size(); ++s)
    group.reports.push_back({first_number + receives.size() + s, false, sends[s].bytes});
  auto const take = [&](std::span<FlatMessage const> messages, RingDirection direction,
                        std::vector<FlatMessage>& taken) {
    for (std::size_t const m : ring_order(messages, rank_, ranks_, direction)) {
      RESHARD_EXPECT(messages[m].peer != rank_ && messages[m].peer >= 0 &&
                     messages[m].peer < ranks_);
      if (messages[m].bytes > 0) taken.push_back(messages[m]);
    }
  };
  take(receives, RingDirection::down, group.receives);
  take(sends, RingDirection::up, group.sends);
  if (group.receives.empty() && group.sends.empty()) {
    at_once_.insert(at_once_.end(), group.reports.begin(), group.reports.end());
    return;
  }
  groups_.push_back(std::move(group));
  advance();
}

void NcclTransport::poll(std::vector<Landed>& landed) {
  RESHARD_EXPECT(communicator_ != nullptr);
  landed.insert(landed.end(), at_once_.begin(), at_once_.end());
  at_once_.clear();
  if (groups_.empty()) return;
  advance();
  for (; in_stream_ > 0 && groups_.front().done->reached(); --in_stream_) {
    Group const& group = groups_.front();
    landed.insert(landed.end(), group.reports.begin(), group.reports.end());
    for (Landed const& report : group.reports) bytes_landed_ += report.bytes;
    groups_.pop_front();
  }
}

/// Puts groups into the stream as far as NCCL takes them; throws NCCL's errors about those in it.
void NcclTransport::advance() {
  for (;;) {
    if (state() == NcclResult::in_progress) return;
    if (launching_) {
      // Not before: an event that is recorded while NCCL is still putting the group into the stream
      // may be in front of it.
      groups_[in_stream_++].done = stream_.record();
      launching_ = false;
    }
    if (in_stream_ == groups_.size()) return;
    launch(groups_[in_stream_]);
    launching_ = true;
    settle_for_a_moment();
  }
}

void NcclTransport::launch(Group const& group) {
  NcclApi& nccl = communicator_->nccl();
  NcclHandle const handle = communicator_->handle();
  check(nccl.group_start(), "begin a group of messages");
  NcclResult taken = NcclResult::success;
  auto const take = [&](NcclResult result) {
    if (refused(result) && !refused(taken)) taken = result;
  };
  for (FlatMessage const& message : group.receives)
    take(nccl.receive(message.at, message.bytes, message.peer, handle, stream_));
  for (FlatMessage const& message : group.sends)
    take(nccl.send(message.at, message.bytes, message.peer, handle, stream_));
  // Also when a message was refused: no group may stay open in this thread.
  NcclResult const started = nccl.group_end();
  check(taken, "receive a message");
  check(started, "send a group of messages");
}

NcclResult NcclTransport::state() {
  auto const answer = communicator_->nccl().state(communicator_->handle());
  check(answer.result, "report its state");
  check(answer.value, "continue the messages");
  return answer.value;
}

void NcclTransport::settle_for_a_moment() {
  for (auto const begin = std::chrono::steady_clock::now();
       std::chrono::steady_clock::now() - begin < launch_time; ::sched_yield())
    if (state() != NcclResult::in_progress) return;
}

void NcclTransport::check(NcclResult result, std::string_view doing) const {
  if (!refused(result)) return;
  // A remote error is the sign of a lost rank or network.
  ErrorKind const kind =
      result == NcclResult::remote_error ? ErrorKind::stall : ErrorKind::internal;
  fail(kind,
       "NCCL could not {}: {}. Messages{} were on their way. Check those ranks and their hosts; "
       "NCCL_DEBUG=WARN shows more.",
       doing, describe(communicator_->nccl(), result), awaited_text(awaited_peers()));
}

std::vector<int> NcclTransport::awaited_peers() const {
  std::set<int> peers;
  for (Group const& group : groups_)
    for (auto const* messages : {&group.receives, &group.sends})
      for (FlatMessage const& message : *messages) peers.insert(message.peer);
  return {peers.begin(), peers.end()};
}

void NcclTransport::cancel() {
  if (communicator_ == nullptr) return;
  communicator_->abort();
  communicator_.reset();
  groups_.clear();
  at_once_.clear();
  in_stream_ = 0;
  launching_ = false;
}

std::unique_ptr<Transport> make_nccl_transport(Comm const& comm, std::shared_ptr<NcclApi> nccl,
                                               NcclRankFacts const& mine, DeviceStream* stream,
                                               double timeout_seconds) {
  std::vector<NcclRankFacts> all;
  for (std::string const& facts : comm.all_gather(pack(mine))) all.push_back(unpack_facts(facts));
  if (auto const problem = nccl_problem(all)) throw Error(ErrorKind::resources, *problem);
  RESHARD_EXPECT(nccl != nullptr && stream != nullptr);
  auto communicator = std::make_unique<NcclCommunicator>(comm, std::move(nccl), timeout_seconds);
  return std::make_unique<NcclTransport>(std::move(communicator), comm.rank(), comm.size(),
                                         *stream);
}

}  // namespace reshard
