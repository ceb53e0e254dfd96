#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <mpi.h>

#include "core/transport/comm.hpp"

namespace reshard {

/// The reason to stop; of several the greatest counts.
enum class StopReason : std::uint64_t { none = 0, signal = 1, failure = 2 };

/// The progress numbers that ranks send to rank 0 from time to time, and the request to stop that
/// it sends back. No call but close() waits: a send is skipped while the previous one is pending.
/// Used by the thread that uses MPI.
class StatusBoard {
 public:
  /// The caller defines the meaning of the numbers.
  using Numbers = std::array<std::uint64_t, 2>;

  /// Collective.
  explicit StatusBoard(Comm const& comm);
  /// Cancels pending messages if close() was not called.
  ~StatusBoard();
  StatusBoard(StatusBoard const&) = delete;
  StatusBoard& operator=(StatusBoard const&) = delete;

  /// Sends this rank's numbers and receives arrived messages.
  void tell(Numbers const& mine);
  /// On rank 0: the last numbers received of each rank; zeros before the first ones.
  std::span<Numbers const> ranks() const { return heard_; }

  /// Requests all ranks to stop: takes effect on this rank at once, then by way of rank 0 on all.
  void ask_to_stop(StopReason reason);
  /// The reason that some rank has given; none if there is no request.
  StopReason stop() const { return stop_; }

  /// Collective: waits for the last numbers of every rank. Rank 0 calls `meanwhile` repeatedly.
  void close(std::function<void()> const& meanwhile);

 private:
  struct Message {
    std::uint64_t stop = 0;
    std::uint64_t last = 0;
    Numbers numbers = {};
  };
  void send(bool last);
  void hear();
  void take(int rank, Message const& message);
  void spread_stop();
  void expect_word();
  void await_end();
  void end_all(std::function<void()> const& meanwhile);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::vector<Numbers> heard_;
  Message outgoing_;
  MPI_Request sending_ = MPI_REQUEST_NULL;
  Message incoming_;                          // rank 0
  MPI_Request receiving_ = MPI_REQUEST_NULL;  // rank 0: numbers; others: the request to stop
  std::uint64_t word_ = 0;                    // others: the StopReason received
  std::uint64_t said_ = 0;                    // rank 0: the StopReason sent
  std::vector<MPI_Request> words_;            // rank 0
  int ended_ = 0;                             // rank 0: ranks that have sent their last numbers
  StopReason stop_ = StopReason::none;
  bool told_ = false;
  bool closed_ = false;
};

}  // namespace reshard
