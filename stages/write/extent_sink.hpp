#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/plan/cells/round.hpp"

namespace reshard {

struct WriteStats {
  std::uint64_t bytes = 0;  ///< without clones
  std::uint64_t calls = 0;
  std::uint64_t cloned_bytes = 0;
  std::uint64_t clone_calls = 0;
};

/// The consumer of the finished bytes of rounds: writes them into target files, or compares them
/// with existing files. Used by one thread.
class ExtentSink {
 public:
  virtual ~ExtentSink() = default;
  /// Takes staging[extent.at, +extent.bytes) for every extent. The extents do not overlap in
  /// the files.
  virtual void write(std::span<Extent const> extents, std::byte* staging) = 0;
  /// Takes the bytes of a round. A sink that cannot clone writes all of them.
  virtual void take(RoundWork const& round, std::byte* staging) { write(round.writes, staging); }
  /// After the last round, on every rank, on the same thread: for sinks whose ranks act together.
  virtual void finish() {}
  /// Closes the files, after stream() has succeeded on every rank, on the calling thread.
  /// Collective.
  virtual void close() {}
  /// The number of steps of write() and finish() completed together with other ranks, to detect
  /// stalls. Any thread.
  virtual std::uint64_t steps() const { return 0; }
  virtual WriteStats const& stats() const = 0;
  /// The way of writing, for reports.
  virtual std::string_view mode_name() const = 0;
};

}  // namespace reshard
