#include "stages/redistribute/exchange.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>

#include <sched.h>

#include "core/base/file.hpp"
#include "core/base/integers.hpp"
#include "core/device/strided_copy.hpp"

namespace reshard {
namespace {

constexpr int message_tag = 71;

// Far below the 2 GiB that an MPI count can say, and small enough that a slow network still shows progress well within the stall timeout.
constexpr std::uint64_t largest_part_bytes = std::uint64_t{64} << 20;

// Ranks may share cores with the reader and the writer: after a moment without news, sleep between looks.
constexpr std::chrono::milliseconds eager_time{5};
constexpr std::chrono::microseconds nap{50};

std::uint64_t part_count(std::uint64_t bytes) { return (bytes + largest_part_bytes - 1) / largest_part_bytes; }

}  // namespace

Exchange::Exchange(Comm const& comm, double stall_timeout_seconds, std::function<void()> while_waiting)
    : comm_(comm), stall_timeout_seconds_(stall_timeout_seconds), while_waiting_(std::move(while_waiting)) {}

void Exchange::run(RoundWork const& work, std::byte* staging) {
  requests_.clear();
  flights_.clear();
  parts_left_.clear();
  for (ZeroFill const& fill : work.fills) std::memset(staging + fill.at, 0, fill.bytes);
  post_receives(work.receives, staging);
  pack_and_send(work.sends, staging);
  copy(work.copies, staging);
  if (!requests_.empty()) unpack_as_they_arrive(work, staging);
}

/// The messages in the order in which to post them: those with rank me + direction first, then on around the ring. Everybody starting with
/// rank 0 would queue up there.
std::vector<std::size_t> Exchange::from_next_peer_on(std::vector<Message> const& messages, int direction) const {
  std::vector<std::size_t> order(messages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto const distance = [&](std::size_t m) { return ((messages[m].peer - comm_.rank()) * direction + comm_.size()) % comm_.size(); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return distance(a) < distance(b); });
  return order;
}

void Exchange::post_receives(std::vector<Message> const& receives, std::byte* staging) {
  parts_left_.resize(receives.size(), 0);
  for (std::size_t const m : from_next_peer_on(receives, -1)) {
    Message const& message = receives[m];
    RESHARD_EXPECT(message.peer != comm_.rank());
    parts_left_[m] = part_count(message.bytes);
    for (std::uint64_t done = 0; done < message.bytes; done += largest_part_bytes) {
      int const bytes = narrow<int>(std::min(largest_part_bytes, message.bytes - done));
      flights_.push_back({m, bytes});
      requests_.push_back(MPI_REQUEST_NULL);
      check_mpi(MPI_Irecv(staging + message.at + done, bytes, MPI_BYTE, message.peer, message_tag, comm_.handle(), &requests_.back()), "MPI_Irecv");
    }
  }
}

void Exchange::pack_and_send(std::vector<Message> const& sends, std::byte* staging) {
  std::size_t const receives = parts_left_.size();
  parts_left_.resize(receives + sends.size(), 0);
  for (std::size_t const m : from_next_peer_on(sends, +1)) {
    Message const& message = sends[m];
    RESHARD_EXPECT(message.peer != comm_.rank());
    copy(message.copies, staging);
    parts_left_[receives + m] = part_count(message.bytes);
    for (std::uint64_t done = 0; done < message.bytes; done += largest_part_bytes) {
      int const bytes = narrow<int>(std::min(largest_part_bytes, message.bytes - done));
      flights_.push_back({receives + m, bytes});
      requests_.push_back(MPI_REQUEST_NULL);
      check_mpi(MPI_Isend(staging + message.at + done, bytes, MPI_BYTE, message.peer, message_tag, comm_.handle(), &requests_.back()), "MPI_Isend");
    }
  }
}

void Exchange::copy(std::vector<StridedCopy> const& copies, std::byte* staging) {
  for (StridedCopy const& one : copies) {
    copy_strided(staging + one.from, staging + one.to, one.run_bytes, one.dims);
    stats_.bytes_copied += copied_bytes(one.run_bytes, one.dims);
  }
}

void Exchange::unpack_as_they_arrive(RoundWork const& work, std::byte* staging) {
  last_progress_ = Clock::now();
  for (std::size_t left = requests_.size(); left > 0;) {
    std::size_t const landed = look_for_arrivals();
    for (std::size_t i = 0; i < landed; ++i) land(static_cast<std::size_t>(done_[i]), statuses_[i], work, staging);
    left -= landed;
    if (landed == 0)
      wait_a_little(work);
    else
      last_progress_ = Clock::now();
  }
}

/// How many requests have completed since the last look; done_ and statuses_ say which and how.
/// Polls instead of MPI_Waitsome: a rank that waits must notice a stalled peer and a failure of its own reader or writer.
std::size_t Exchange::look_for_arrivals() {
  int count = 0;
  done_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int const code = MPI_Testsome(narrow<int>(requests_.size()), requests_.data(), &count, done_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS)
    for (int i = 0; i < count; ++i) check_mpi(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, "a message");
  check_mpi(code, "MPI_Testsome");
  RESHARD_EXPECT(count >= 0);
  return static_cast<std::size_t>(count);
}

void Exchange::land(std::size_t flight, MPI_Status const& status, RoundWork const& work, std::byte* staging) {
  auto const [message, bytes] = flights_[flight];
  std::size_t const still_flying = --parts_left_[message];
  bool const received = message < work.receives.size();
  (received ? stats_.bytes_received : stats_.bytes_sent) += static_cast<std::uint64_t>(bytes);
  if (!received) return;
  int arrived = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &arrived), "MPI_Get_count");
  if (arrived != bytes)
    fail(ErrorKind::internal, "a message from rank {} has {} bytes, {} were planned. This is a bug of reshard: the ranks carry out different plans.",
         work.receives[message].peer, arrived, bytes);
  if (still_flying == 0) copy(work.receives[message].copies, staging);
}

void Exchange::wait_a_little(RoundWork const& work) {
  auto const began = Clock::now();
  if (while_waiting_) while_waiting_();
  if (began - last_progress_ > std::chrono::duration<double>(stall_timeout_seconds_)) give_up(work);
  if (began - last_progress_ < eager_time)
    ::sched_yield();
  else
    std::this_thread::sleep_for(nap);
  stats_.waiting_seconds += std::chrono::duration<double>(Clock::now() - began).count();
}

void Exchange::give_up(RoundWork const& work) const {
  std::string waiting_for;
  auto const list = [&](std::vector<Message> const& messages, std::size_t first, std::string_view verb) {
    for (std::size_t m = 0; m < messages.size(); ++m)
      if (parts_left_[first + m] > 0) waiting_for += fmt::format(" {} rank {} ({})", verb, messages[m].peer, human_bytes(messages[m].bytes));
  };
  list(work.receives, 0, "from");
  list(work.sends, work.receives.size(), "to");
  fmt::print(stderr,
             "error: rank {}: no message came or left for {} s. Still waiting for messages{}. Look at those ranks and their hosts, then run again.\n",
             comm_.rank(), stall_timeout_seconds_, waiting_for);
  std::fflush(stderr);
  comm_.abort(exit_code(ErrorKind::stall));
}

}  // namespace reshard
