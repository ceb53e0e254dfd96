#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/base/threads/workers.hpp"
#include "core/plan/cells/round.hpp"
#include "core/transport/comm.hpp"
#include "core/transport/monitor/patience.hpp"
#include "core/transport/transport.hpp"

namespace reshard {

struct ExchangeStats {
  std::uint64_t bytes_copied = 0;    ///< by local copies, packing and unpacking
  std::uint64_t bytes_sent = 0;      ///< to other ranks
  std::uint64_t bytes_received = 0;  ///< from other ranks
  double waiting_seconds = 0;        ///< for messages
};

/// Fills, copies, packs, exchanges and unpacks rounds. Messages between two ranks are matched by
/// their order, so both must carry out their common rounds, and list their messages within a round,
/// in the same order. Used by one thread; with workers, several copies are made at a time.
class Exchange {
 public:
  /// `transport` moves messages in host memory and outlives the exchange. `while_waiting` is called
  /// repeatedly while messages are awaited; it may throw to give up. It may be empty. A round
  /// without an arrived or sent message for `stall_timeout_seconds` names the awaited ranks on
  /// stderr and ends the job with code 8. `workers` share the copies and must outlive the exchange;
  /// nullptr: this thread makes them.
  Exchange(Comm const& comm, Transport& transport, double stall_timeout_seconds,
           std::function<void()> while_waiting, Workers* workers = nullptr);

  /// After an exception messages from and to `staging` may still be in flight: the job cannot
  /// continue, see Comm::abort(). Pre: no message has this rank as its peer.
  void run(RoundWork const& work, std::byte* staging);

  ExchangeStats const& stats() const { return stats_; }

 private:
  void post_receives(std::vector<Message> const& receives, std::byte* staging);
  void pack_and_send(std::vector<Message> const& sends, std::byte* staging);
  void copy(std::vector<StridedCopy> const& copies, std::byte* staging);
  void unpack_as_they_arrive(RoundWork const& work, std::byte* staging);
  void land(Landed const& landed, RoundWork const& work, std::byte* staging);
  std::span<FlatMessage const> flat(std::vector<Message> const& messages, std::byte* staging);
  [[noreturn]] void give_up(RoundWork const& work) const;

  Comm const& comm_;
  Transport& transport_;
  Patience patience_;
  ExchangeStats stats_;
  Workers* workers_;

  // Of the current round; members to reuse their memory.
  std::vector<FlatMessage> flat_;
  std::vector<Landed> landed_;
  std::vector<char> awaited_;  // per message: the receives first, then the sends
};

}  // namespace reshard
