#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/text/json.hpp"
#include "core/transport/monitor/status_board.hpp"
#include "pipeline/run/event_file.hpp"

namespace reshard {

/// How a run shows how far it is, on stderr of rank 0.
enum class ProgressStyle {
  automatic,  ///< live on a terminal, else lines
  live,       ///< one line per stage, redrawn
  lines,      ///< a line from time to time
  none,
};

/// Whose bytes a stage's total counts.
enum class StageTotal { of_this_rank, of_all_ranks };

/// How far all ranks are with one stage.
struct StageState {
  std::string_view stage;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
  double seconds = 0;
  int slowest_rank = -1;     ///< the one with the least progress; -1: ranks are not distinguished
  double slowest_share = 1;  ///< of its part, 0 to 1
};

/// "copy    [#####.....]  39 %  3.2 of 8.1 GiB  1.42 GiB/s  0:03:26 left  slowest rank 5 (31 %)":
/// the most of it that has `width` columns. All amounts are in the unit of the total.
std::string progress_text(StageState const& state, std::size_t width);
/// "copy    8.1 GiB in 5.7 s, 1.42 GiB/s"
std::string stage_end_text(StageState const& state);

/// The reports of a run while it works. Every rank has one; only rank 0 prints.
class Progress {
 public:
  struct Options {
    ProgressStyle style = ProgressStyle::automatic;
    double line_seconds = 30;  ///< between lines and between events of progress; 0: none
    std::atomic<bool> const* signal = nullptr;  ///< asks this rank to stop
    EventFile* events = nullptr;                ///< of rank 0; may be null
  };
  explicit Progress(Options options);

  /// One stage of bytes, on all ranks. The calls are made by the thread that uses MPI; begin and
  /// end are collective. Ranks are distinguished when each knows its own total.
  void begin(Comm const& comm, std::string_view stage, std::uint64_t total, StageTotal whose);
  /// Changes this rank's work; that of all ranks stays.
  void expect(std::uint64_t total) { my_total_ = total; }
  /// Call it often: it mostly only checks the clock. `done` is this rank's.
  void look(std::uint64_t done);
  /// Waits for all ranks and shows the stage's end. `failed`: this rank ended with an error other
  /// than a stop.
  void end(std::uint64_t done, bool failed);
  /// True once the stage is to stop: a signal came to some rank, or some rank failed. For any
  /// thread.
  std::atomic<bool> const& stop() const { return stop_; }
  /// Whether that was another rank's failure, which it reports itself.
  bool stopped_by_failure() const { return stop_reason_ == StopReason::failure; }

  /// A readable line, of rank 0, unless nothing is to be shown.
  void note(std::string_view text);

  /// Notes an event on rank 0: {"type": type, "time": "...", members...}.
  void event(std::string_view type, Json members);

 private:
  using Clock = std::chrono::steady_clock;
  StageState state() const;
  void show();
  void show_live(StageState const& state);
  void show_line(StageState const& state);
  void hear();

  Options options_;
  bool live_;  ///< where progress is seen does not change during a run
  int rank_ = 0;
  std::optional<StatusBoard> board_;
  std::string stage_;
  std::uint64_t my_total_ = 0;  ///< 0: not known
  std::uint64_t all_total_ = 0;
  std::uint64_t my_done_ = 0;
  Clock::time_point began_;
  Clock::time_point told_;
  Clock::time_point drawn_;
  Clock::time_point lined_;
  bool lines_shown_ = false;
  std::atomic<bool> stop_ = false;
  StopReason stop_reason_ = StopReason::none;
};

}  // namespace reshard
