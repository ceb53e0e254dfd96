#include "core/transport/monitor/status_board.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace reshard {
namespace {

constexpr int numbers_tag = 1;
constexpr int word_tag = 2;
constexpr std::uint64_t end_word = 100;  // other words are StopReasons
constexpr std::chrono::milliseconds pause{1};

bool done(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) {
  int flag = 0;
  check_mpi(MPI_Test(&request, &flag, status), "MPI_Test");
  return flag != 0;
}

}  // namespace

StatusBoard::StatusBoard(Comm const& comm)
    : rank_(comm.rank()), size_(comm.size()), heard_(static_cast<std::size_t>(comm.size())) {
  if (size_ == 1) return;
  check_mpi(MPI_Comm_dup(comm.handle(), &comm_), "MPI_Comm_dup");
  expect_word();
}

/// Rank 0 waits for anybody's numbers, the others for its word.
void StatusBoard::expect_word() {
  if (rank_ == 0)
    check_mpi(MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, numbers_tag, comm_,
                        &receiving_),
              "MPI_Irecv");
  else
    check_mpi(MPI_Irecv(&word_, 1, MPI_UINT64_T, 0, word_tag, comm_, &receiving_), "MPI_Irecv");
}

StatusBoard::~StatusBoard() {
  if (closed_ || size_ == 1) return;
  // The communicator stays: freeing it would need every rank.
  for (MPI_Request* const request : {&receiving_, &sending_})
    if (*request != MPI_REQUEST_NULL) {
      MPI_Cancel(request);
      MPI_Request_free(request);
    }
  for (MPI_Request& request : words_)
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
}

void StatusBoard::take(int rank, Message const& message) {
  heard_[static_cast<std::size_t>(rank)] = message.numbers;
  ask_to_stop(static_cast<StopReason>(message.stop));
  if (message.last != 0) ++ended_;
}

void StatusBoard::hear() {
  if (rank_ != 0) {
    if (receiving_ != MPI_REQUEST_NULL && done(receiving_) && word_ != end_word) {
      ask_to_stop(static_cast<StopReason>(word_));
      expect_word();
    }
    return;
  }
  for (MPI_Status status; receiving_ != MPI_REQUEST_NULL && done(receiving_, &status);) {
    take(status.MPI_SOURCE, incoming_);
    if (ended_ < size_ - 1) expect_word();
  }
  spread_stop();
}

void StatusBoard::spread_stop() {
  if (stop_ == StopReason::none || told_) return;
  told_ = true;  // once: a later failure is learned at the end
  said_ = static_cast<std::uint64_t>(stop_);
  words_.resize(static_cast<std::size_t>(size_) - 1);
  for (int r = 1; r < size_; ++r)
    check_mpi(MPI_Isend(&said_, 1, MPI_UINT64_T, r, word_tag, comm_,
                        &words_[static_cast<std::size_t>(r) - 1]),
              "MPI_Isend");
}

void StatusBoard::send(bool last) {
  outgoing_ = {static_cast<std::uint64_t>(stop_), last ? 1U : 0U,
               heard_[static_cast<std::size_t>(rank_)]};
  // Synchronous: complete when rank 0 has received it. Else numbers would pile up while rank 0
  // waits in a collective.
  check_mpi(MPI_Issend(&outgoing_, sizeof outgoing_, MPI_BYTE, 0, numbers_tag, comm_, &sending_),
            "MPI_Issend");
}

void StatusBoard::tell(Numbers const& mine) {
  heard_[static_cast<std::size_t>(rank_)] = mine;
  if (size_ == 1) return;
  if (rank_ != 0 && (sending_ == MPI_REQUEST_NULL || done(sending_))) send(false);
  hear();
}

void StatusBoard::ask_to_stop(StopReason reason) { stop_ = std::max(stop_, reason); }

void StatusBoard::close(std::function<void()> const& meanwhile) {
  if (closed_) return;
  closed_ = true;
  if (size_ == 1) return;
  if (rank_ == 0)
    end_all(meanwhile);
  else
    await_end();
  check_mpi(MPI_Comm_free(&comm_), "MPI_Comm_free");
}

void StatusBoard::await_end() {
  check_mpi(MPI_Wait(&sending_, MPI_STATUS_IGNORE), "MPI_Wait");
  send(true);
  while (word_ != end_word) {
    if (receiving_ != MPI_REQUEST_NULL && !done(receiving_)) {
      std::this_thread::sleep_for(pause);
      continue;
    }
    if (word_ == end_word) break;
    ask_to_stop(static_cast<StopReason>(word_));
    expect_word();
  }
  check_mpi(MPI_Wait(&sending_, MPI_STATUS_IGNORE), "MPI_Wait");
}

void StatusBoard::end_all(std::function<void()> const& meanwhile) {
  while (ended_ < size_ - 1) {
    hear();
    if (meanwhile) meanwhile();
    std::this_thread::sleep_for(pause);
  }
  for (MPI_Request& request : words_) check_mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
  std::uint64_t const word = end_word;
  for (int r = 1; r < size_; ++r)
    check_mpi(MPI_Send(&word, 1, MPI_UINT64_T, r, word_tag, comm_), "MPI_Send");
}

}  // namespace reshard
