#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace reshard {

/// Bytes that go to another rank or come from it. Never to or from the rank itself: those are
/// copies.
struct FlatMessage {
  int peer = 0;
  std::byte* at = nullptr;
  std::uint64_t bytes = 0;
};

/// A message that has left (its memory may be used again) or arrived, by the number it was posted
/// under.
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
  /// receives.size() + s. Every message of a round that two ranks share must be in one call on both
  /// of them where one_group() says so. An empty message is none and lands at once.
  virtual void post(std::span<FlatMessage const> receives, std::span<FlatMessage const> sends,
                    std::size_t first_number) = 0;
  /// Appends what has landed since the last call. Looks for errors of the network, of the library
  /// and of other ranks.
  virtual void poll(std::vector<Landed>& landed) = 0;
  /// Whether a round's messages go in one post.
  virtual bool one_group() const = 0;
  /// Of all messages since the beginning, and of the parts of those under way that have landed:
  /// while it grows, something moves.
  virtual std::uint64_t bytes_landed() const = 0;
  /// Messages in flight: the peers that are waited for, for messages.
  virtual std::vector<int> awaited_peers() const = 0;
  /// Gives up everything in flight without waiting for any rank, so that the process can end.
  virtual void cancel() = 0;
};

}  // namespace reshard
