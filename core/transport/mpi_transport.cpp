#include "core/transport/mpi_transport.hpp"

#include <algorithm>
#include <set>

#include "core/base/tables/integers.hpp"
#include "core/transport/ring_order.hpp"

namespace reshard {
namespace {

constexpr int message_tag = 71;

// Far below the 2 GiB of an MPI count, and small enough that a slow network still shows progress
// well within a stall timeout.
constexpr std::uint64_t largest_part_bytes = std::uint64_t{64} << 20;

}  // namespace

void MpiTransport::post(std::span<FlatMessage const> receives, std::span<FlatMessage const> sends,
                        std::size_t first_number) {
  for (std::size_t const r : ring_order(receives, comm_.rank(), comm_.size(), RingDirection::down))
    begin(receives[r], first_number + r, true);
  for (std::size_t const s : ring_order(sends, comm_.rank(), comm_.size(), RingDirection::up))
    begin(sends[s], first_number + receives.size() + s, false);
}

void MpiTransport::begin(FlatMessage const& message, std::size_t number, bool receive) {
  RESHARD_EXPECT(message.peer != comm_.rank() && message.peer >= 0 && message.peer < comm_.size());
  Landed const report{number, receive, message.bytes};
  if (message.bytes == 0) return at_once_.push_back(report);
  std::size_t const flight = new_flight({report, message.peer, 0});
  for (std::uint64_t done = 0; done < message.bytes; done += largest_part_bytes) {
    int const bytes = narrow<int>(std::min(largest_part_bytes, message.bytes - done));
    MPI_Request request = MPI_REQUEST_NULL;
    if (receive)
      check_mpi(MPI_Irecv(message.at + done, bytes, MPI_BYTE, message.peer, message_tag,
                          comm_.handle(), &request),
                "MPI_Irecv");
    else
      check_mpi(MPI_Isend(message.at + done, bytes, MPI_BYTE, message.peer, message_tag,
                          comm_.handle(), &request),
                "MPI_Isend");
    requests_.push_back(request);
    parts_.push_back({flight, bytes});
    ++flights_[flight].parts_left;
  }
}

std::size_t MpiTransport::new_flight(Flight const& flight) {
  if (free_flights_.empty()) {
    flights_.push_back(flight);
    return flights_.size() - 1;
  }
  std::size_t const at = free_flights_.back();
  free_flights_.pop_back();
  flights_[at] = flight;
  return at;
}

/// Polls instead of MPI_Waitsome: a rank that waits must notice a stalled peer and failures of its
/// own other threads.
void MpiTransport::poll(std::vector<Landed>& landed) {
  landed.insert(landed.end(), at_once_.begin(), at_once_.end());
  at_once_.clear();
  if (requests_.empty()) return;
  int count = 0;
  done_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int const code = MPI_Testsome(narrow<int>(requests_.size()), requests_.data(), &count,
                                done_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS)
    for (int i = 0; i < count; ++i)
      check_mpi(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, "a message");
  check_mpi(code, "MPI_Testsome");
  RESHARD_EXPECT(count >= 0);
  for (int i = 0; i < count; ++i) {
    auto const at = static_cast<std::size_t>(i);
    land(static_cast<std::size_t>(done_[at]), statuses_[at], landed);
  }
  if (count == 0) return;
  // MPI has made the finished requests null: close the gaps.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    parts_[kept++] = parts_[i];
  }
  requests_.resize(kept);
  parts_.resize(kept);
}

void MpiTransport::land(std::size_t request, MPI_Status const& status,
                        std::vector<Landed>& landed) {
  Part const part = parts_[request];
  Flight& flight = flights_[part.flight];
  bytes_landed_ += static_cast<std::uint64_t>(part.bytes);
  if (flight.report.received) {
    int arrived = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &arrived), "MPI_Get_count");
    if (arrived != part.bytes)
      fail(
          ErrorKind::internal,
          "a message from rank {} has {} bytes, {} were planned. This is a bug of reshard: the ranks carry out different plans.",
          flight.peer, arrived, part.bytes);
  }
  if (--flight.parts_left > 0) return;
  landed.push_back(flight.report);
  free_flights_.push_back(part.flight);
}

std::vector<int> MpiTransport::awaited_peers() const {
  std::set<int> peers;
  for (Part const& part : parts_) peers.insert(flights_[part.flight].peer);
  return {peers.begin(), peers.end()};
}

void MpiTransport::cancel() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (flights_[parts_[i].flight].report.received) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  requests_.clear();
  parts_.clear();
  flights_.clear();
  free_flights_.clear();
  at_once_.clear();
}

}  // namespace reshard
