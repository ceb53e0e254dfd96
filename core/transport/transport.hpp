#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace reshard {

/// A message to or from another rank, never the rank itself (those are copies).
struct FlatMessage {
  int peer = 0;
  std::byte* at = nullptr;
  std::uint64_t bytes = 0;
};

/// A message that has left (its memory may be used again) or arrived, by its number in post().
struct Landed {
  std::size_t number = 0;
  bool received = false;
  std::uint64_t bytes = 0;
};

/// Moves flat messages between ranks. Messages from one rank to another arrive in the order in
/// which they were posted, so both must post their common messages in the same order. No call
/// waits. Used by one thread.
///
/// An Error of any call leaves messages in flight: the job cannot continue (Comm::abort), after
/// cancel().
class Transport {
 public:
  virtual ~Transport() = default;

  /// Begins a group of messages; receive r has the number first_number + r, send s first_number +
  /// receives.size() + s. If one_group(), all messages of a round between two ranks must be in one
  /// call on both of them. An empty message is not sent and lands at once.
  virtual void post(std::span<FlatMessage const> receives, std::span<FlatMessage const> sends,
                    std::size_t first_number) = 0;
  /// Appends the messages that have landed since the last call. Checks for errors of the network,
  /// of the library and of other ranks.
  virtual void poll(std::vector<Landed>& landed) = 0;
  /// Whether the messages of a round must be in one post.
  virtual bool one_group() const = 0;
  /// The bytes of all landed messages, and of the landed parts of those in flight: grows while
  /// there is progress.
  virtual std::uint64_t bytes_landed() const = 0;
  /// The peers of the messages in flight, for error texts.
  virtual std::vector<int> awaited_peers() const = 0;
  /// Cancels all messages in flight without waiting for any rank, so that the process can end.
  virtual void cancel() = 0;
};

}  // namespace reshard
