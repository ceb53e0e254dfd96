#include "pipeline/run/progress.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/base/files/file.hpp"
#include "pipeline/messages/live_line.hpp"
#include "pipeline/messages/log.hpp"
#include "pipeline/messages/phase_line.hpp"

namespace reshard {
namespace {

constexpr std::chrono::milliseconds tell_interval{200};
constexpr std::chrono::milliseconds draw_interval{200};
constexpr double least_rated_seconds = 0.05;  // before that a rate is noise

double share(StageState const& state) {
  if (state.total_bytes == 0) return 1;
  return std::min(1.0,
                  static_cast<double>(state.done_bytes) / static_cast<double>(state.total_bytes));
}

double bytes_per_second(StageState const& state) {
  return state.seconds < least_rated_seconds
             ? 0
             : static_cast<double>(state.done_bytes) / state.seconds;
}

int percent(double of_one) { return static_cast<int>(std::floor(of_one * 100)); }

std::string rate_text(StageState const& state, ByteUnit unit) {
  return rate_text(state.done_bytes, state.seconds < least_rated_seconds ? 0 : state.seconds, unit);
}

std::string amounts_text(StageState const& state, ByteUnit unit) {
  int const decimals = unit.bytes == 1 ? 0 : 1;
  return fmt::format("{:.{}f} of {:.{}f} {}", static_cast<double>(state.done_bytes) / unit.bytes,
                     decimals, static_cast<double>(state.total_bytes) / unit.bytes, decimals,
                     unit.name);
}

/// The parts of a line besides the stage and its progress.
struct LineParts {
  std::size_t bar_cells = 0;
  bool slowest = false;
  bool left = true;
};

std::string text_of(StageState const& state, LineParts parts) {
  double const done = share(state);
  ByteUnit const unit = unit_of(state.total_bytes);
  std::string text = fmt::format("{:<8}", state.stage);
  if (parts.bar_cells > 0) {
    auto const cells = static_cast<std::size_t>(done * static_cast<double>(parts.bar_cells));
    text +=
        fmt::format("[{}{}] ", std::string(cells, '#'), std::string(parts.bar_cells - cells, '.'));
  }
  text += fmt::format("{:3} %  {}  {}", percent(done), amounts_text(state, unit),
                      rate_text(state, unit));
  if (double const rate = bytes_per_second(state);
      parts.left && rate > 0 && state.done_bytes <= state.total_bytes)
    text += fmt::format(
        "  {} left", clock_text(static_cast<double>(state.total_bytes - state.done_bytes) / rate));
  if (parts.slowest && state.slowest_rank >= 0)
    text +=
        fmt::format("  slowest rank {} ({} %)", state.slowest_rank, percent(state.slowest_share));
  return text;
}

}  // namespace

std::string progress_text(StageState const& state, std::size_t width) {
  constexpr std::array<LineParts, 6> forms = {{{.bar_cells = 20, .slowest = true, .left = true},
                                               {.bar_cells = 10, .slowest = true, .left = true},
                                               {.bar_cells = 0, .slowest = true, .left = true},
                                               {.bar_cells = 10, .slowest = false, .left = true},
                                               {.bar_cells = 0, .slowest = false, .left = true},
                                               {.bar_cells = 0, .slowest = false, .left = false}}};
  std::string text;
  for (LineParts const& parts : forms) {
    text = text_of(state, parts);
    if (text.size() <= width) break;
  }
  return text.substr(0, width);
}

std::string stage_end_text(StageState const& state) {
  return fmt::format("{:<8}{} in {:.1f} s, {}", state.stage, human_bytes(state.done_bytes),
                     state.seconds, rate_text(state, unit_of(state.done_bytes)));
}

Progress::Progress(Options options)
    : options_(options),
      live_(options.style == ProgressStyle::live ||
            (options.style == ProgressStyle::automatic && live_line::on_terminal())) {}

void Progress::note(std::string_view text) {
  if (options_.style != ProgressStyle::none) log_progress(text);
}

void Progress::begin(Comm const& comm, std::string_view stage, std::uint64_t total,
                     StageTotal whose) {
  rank_ = comm.rank();
  stage_ = stage;
  bool const own = whose == StageTotal::of_this_rank;
  my_total_ = own ? total : 0;
  all_total_ = own ? static_cast<std::uint64_t>(comm.sum(static_cast<std::int64_t>(total))) : total;
  my_done_ = 0;
  stop_ = false;
  stop_reason_ = StopReason::none;
  lines_shown_ = false;
  began_ = told_ = drawn_ = lined_ = Clock::now();
  board_.emplace(comm);
  event("stage", Json().set("stage", stage_).set("state", "begin"));
}

void Progress::hear() {
  if (options_.signal != nullptr && *options_.signal) board_->ask_to_stop(StopReason::signal);
  board_->tell({my_done_, my_total_});
  stop_reason_ = board_->stop();
  if (stop_reason_ != StopReason::none) stop_ = true;
}

void Progress::look(std::uint64_t done) {
  my_done_ = done;
  if (options_.signal != nullptr && *options_.signal) stop_ = true;
  Clock::time_point const now = Clock::now();
  if (now - told_ < tell_interval) return;
  told_ = now;
  hear();
  if (rank_ == 0) show();
}

StageState Progress::state() const {
  StageState state;
  state.stage = stage_;
  state.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  state.total_bytes = all_total_;
  auto const ranks = board_->ranks();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::uint64_t const done = ranks[r][0];
    std::uint64_t const total = ranks[r][1];
    state.done_bytes += done;
    if (ranks.size() == 1 || total == 0) continue;
    double const its = static_cast<double>(done) / static_cast<double>(total);
    if (its >= state.slowest_share) continue;
    state.slowest_rank = static_cast<int>(r);
    state.slowest_share = its;
  }
  return state;
}

void Progress::show() {
  if (options_.style != ProgressStyle::none && live_) show_live(state());
  bool const due =
      options_.line_seconds > 0 &&
      std::chrono::duration<double>(Clock::now() - lined_).count() >= options_.line_seconds;
  if (!due) return;
  lined_ = Clock::now();
  StageState const now = state();
  if (options_.style != ProgressStyle::none && !live_) show_line(now);
  Json members;
  members.set("stage", stage_)
      .set("done_bytes", now.done_bytes)
      .set("total_bytes", now.total_bytes)
      .set("seconds", now.seconds);
  members.set("bytes_per_second", bytes_per_second(now))
      .set("slowest_rank", now.slowest_rank)
      .set("slowest_share", now.slowest_share);
  event("progress", std::move(members));
}

void Progress::show_live(StageState const& state) {
  if (Clock::now() - drawn_ < draw_interval) return;
  drawn_ = Clock::now();
  lines_shown_ = true;
  PhaseLine::hold(true);
  live_line::draw(progress_text(state, live_line::width()));
}

void Progress::show_line(StageState const& state) {
  lines_shown_ = true;
  PhaseLine::hold(true);
  log_progress(text_of(state, {.bar_cells = 0, .slowest = true, .left = true}));
}

void Progress::end(std::uint64_t done, bool failed) {
  if (!board_) return;
  my_done_ = done;
  if (failed) board_->ask_to_stop(StopReason::failure);
  hear();
  board_->close([this] {
    Clock::time_point const now = Clock::now();
    if (now - told_ < tell_interval) return;
    told_ = now;
    if (rank_ == 0) show();
  });
  stop_reason_ = board_->stop();
  StageState const end = state();
  board_.reset();
  if (rank_ != 0) return;
  if (lines_shown_ && live_) live_line::finish(stage_end_text(end));
  if (lines_shown_ && !live_) log_progress(stage_end_text(end));
  PhaseLine::hold(false);
  event("stage", Json()
                     .set("stage", stage_)
                     .set("state", "end")
                     .set("bytes", end.done_bytes)
                     .set("seconds", end.seconds));
}

void Progress::event(std::string_view type, Json members) {
  if (options_.events != nullptr) options_.events->add(type, std::move(members));
}

}  // namespace reshard
