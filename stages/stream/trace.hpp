#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/transport/comm.hpp"

namespace reshard {

/// The time span of one round in a stage or in a stream of a GPU.
struct StageSpan {
  std::string_view lane;  ///< a text with static storage: "read", "upload"
  std::uint64_t round = 0;
  double begin = 0;  ///< seconds since the trace began
  double end = 0;
  std::uint64_t bytes = 0;
};

/// The timeline of a rank's run, kept in memory. Any thread may add. Above a million spans (48 MB)
/// further ones are only counted.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  void add(StageSpan const& span);
  double seconds(Clock::time_point when) const {
    return std::chrono::duration<double>(when - begin_).count();
  }
  double now() const { return seconds(Clock::now()); }

  /// This rank's spans as members of a JSON array of Trace Event Format ("X" events in
  /// microseconds, process = rank, thread = lane), without the brackets; ends without a comma.
  /// `shift` seconds are added to every time. Spans of a lane that overlap get threads of their
  /// own.
  std::string events(int rank, double shift) const;

 private:
  Clock::time_point begin_ = Clock::now();
  mutable std::mutex mutex_;
  std::vector<StageSpan> spans_;
  std::uint64_t dropped_ = 0;
};

/// The file of a trace. Opened before the job reads a byte, so that an unusable path is found at
/// once.
class TraceFile {
 public:
  /// Creates the file, or empties an earlier trace. An Error of kind usage for any other existing
  /// file, and if the system refuses.
  explicit TraceFile(std::filesystem::path path);
  /// Removes the file if it was created here and is still empty.
  ~TraceFile();
  TraceFile(TraceFile const&) = delete;
  TraceFile& operator=(TraceFile const&) = delete;

  std::filesystem::path const& path() const { return path_; }
  /// Appends; an Error of kind io if the system refuses.
  void write(std::string_view text);

 private:
  std::filesystem::path path_;
  int file_ = -1;
  bool created_ = false;
  bool written_ = false;
};

/// Writes the spans of all ranks as one file of the Trace Event Format, which Perfetto and
/// chrome://tracing open. Collective; rank 0 has the file. Clocks of hosts are aligned at a barrier
/// in the call: spans of different ranks are accurate to about the time of a barrier.
void write_trace(Comm const& comm, Trace const& trace, TraceFile* file);

}  // namespace reshard
