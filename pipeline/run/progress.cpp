#include "pipeline/run/progress.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <spdlog/sinks/stdout_sinks.h>

#include "core/base/file.hpp"

namespace reshard {
namespace {

constexpr std::chrono::milliseconds tell_interval{200};
constexpr std::chrono::milliseconds draw_interval{200};
constexpr std::size_t bar_cells = 20;
constexpr std::size_t usual_width = 100;
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

std::string rate_text(StageState const& state) {
  return fmt::format("{:.2f} GiB/s", bytes_per_second(state) / (1U << 30U));
}

/// The terminal on which stderr is seen: our own, or that of mpirun, which passes our words on from
/// a pipe. -1 for none; else to be closed.
int open_terminal() {
  if (::isatty(STDERR_FILENO) == 1) return ::dup(STDERR_FILENO);
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return -1;
  std::string const path = fmt::format("/proc/{}/fd/{}", ::getppid(), STDERR_FILENO);
  int const file = ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0 || ::isatty(file) == 1) return file;
  ::close(file);
  return -1;
}

std::size_t terminal_width() {
  int const terminal = open_terminal();
  winsize size{};
  bool const known = terminal >= 0 && ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  if (terminal >= 0) ::close(terminal);
  return known ? size.ws_col : usual_width;
}

/// The longest form that fits into one line.
std::string line_text(StageState const& state, std::size_t width) {
  std::string text = progress_text(state, true);
  if (text.size() > width) text = progress_text(state, false);
  return text.substr(0, width);
}

}  // namespace

bool stderr_is_terminal() {
  char const* const term = std::getenv("TERM");
  if (term != nullptr && std::string_view(term) == "dumb") return false;
  int const terminal = open_terminal();
  if (terminal >= 0) ::close(terminal);
  return terminal >= 0;
}

std::string clock_text(double seconds) {
  auto const whole = static_cast<std::uint64_t>(std::max(0.0, std::ceil(seconds)));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string progress_text(StageState const& state, bool bar) {
  double const done = share(state);
  std::string text = fmt::format("{:<8}", state.stage);
  if (bar) {
    auto const cells = static_cast<std::size_t>(done * bar_cells);
    text += fmt::format("[{}{}] ", std::string(cells, '#'), std::string(bar_cells - cells, '.'));
  }
  text += fmt::format("{:3} %  {} of {}  {}", percent(done), human_bytes(state.done_bytes),
                      human_bytes(state.total_bytes), rate_text(state));
  if (double const rate = bytes_per_second(state);
      rate > 0 && state.done_bytes <= state.total_bytes)
    text += fmt::format(
        "  {} left", clock_text(static_cast<double>(state.total_bytes - state.done_bytes) / rate));
  if (state.slowest_rank >= 0)
    text +=
        fmt::format("  slowest rank {} ({} %)", state.slowest_rank, percent(state.slowest_share));
  return text;
}

std::string stage_end_text(StageState const& state) {
  return fmt::format("{:<8}{} in {:.1f} s, {}", state.stage, human_bytes(state.done_bytes),
                     state.seconds, rate_text(state));
}

Progress::Progress(Options options)
    : options_(options),
      live_(options.style == ProgressStyle::live ||
            (options.style == ProgressStyle::automatic && stderr_is_terminal())),
      log_(std::make_shared<spdlog::logger>("reshard",
                                            std::make_shared<spdlog::sinks::stderr_sink_st>())) {
  log_->set_pattern("%Y-%m-%d %H:%M:%S %n: %v");
}

void Progress::note(std::string_view text) {
  if (options_.style != ProgressStyle::none) log_->info(text);
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
  std::fputs(("\r" + line_text(state, terminal_width() - 1) + "\x1b[K").c_str(), stderr);
}

void Progress::show_line(StageState const& state) {
  lines_shown_ = true;
  log_->info(progress_text(state, false));
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
  if (lines_shown_ && live_) std::fputs(("\r" + stage_end_text(end) + "\x1b[K\n").c_str(), stderr);
  if (lines_shown_ && !live_) log_->info(stage_end_text(end));
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
