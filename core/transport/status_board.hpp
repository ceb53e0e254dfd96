#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <mpi.h>

#include "core/transport/comm.hpp"

namespace reshard {

/// Why ranks shall stop; the greater one counts.
enum class StopReason : std::uint64_t { none = 0, signal = 1, failure = 2 };

/// What the ranks tell rank 0 about themselves from time to time, and the one word that goes back:
/// stop. Nobody waits for it: a rank that has not yet got rid of its last numbers keeps silent.
/// Used by the thread that uses MPI.
class StatusBoard {
 public:
  /// What a number means is the users' affair.
  using Numbers = std::array<std::uint64_t, 2>;

  /// Collective.
  explicit StatusBoard(Comm const& comm);
  /// Gives up what is under way when close() was not called.
  ~StatusBoard();
  StatusBoard(StatusBoard const&) = delete;
  StatusBoard& operator=(StatusBoard const&) = delete;

  /// Says how this rank stands, and hears what there is to hear.
  void tell(Numbers const& mine);
  /// On rank 0: what was last heard of each rank; zeros before the first time.
  std::span<Numbers const> ranks() const { return heard_; }

  /// Tells this rank at once, soon rank 0, and then all.
  void ask_to_stop(StopReason reason);
  /// What some rank has asked for.
  StopReason stop() const { return stop_; }

  /// Collective: waits for the last numbers of every rank. Rank 0 calls `meanwhile` again and
  /// again.
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
  MPI_Request receiving_ = MPI_REQUEST_NULL;  // rank 0: numbers; others: the word
  std::uint64_t word_ = 0;                    // others: what rank 0 said
  std::uint64_t said_ = 0;                    // rank 0: what it says
  std::vector<MPI_Request> words_;            // rank 0
  int ended_ = 0;                             // rank 0: ranks that have told their last
  StopReason stop_ = StopReason::none;
  bool told_ = false;
  bool closed_ = false;
};

}  // namespace reshard
