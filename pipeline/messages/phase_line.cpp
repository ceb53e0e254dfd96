#include "pipeline/messages/phase_line.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "core/base/threads/activity.hpp"
#include "pipeline/messages/live_line.hpp"
#include "pipeline/messages/log.hpp"

namespace reshard {
namespace {

constexpr std::chrono::milliseconds interval{100};
constexpr double moment_seconds = 0.3;

std::atomic<PhaseLine*> running = nullptr;

}  // namespace

std::string clock_text(double seconds) {
  auto const whole = static_cast<std::uint64_t>(std::max(0.0, std::ceil(seconds)));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string phase_text(Activity const& activity) {
  std::string share;
  if (activity.total_bytes > 0)
    share = fmt::format("  {:.0f} %",
                        std::floor(std::min(1.0, static_cast<double>(activity.done_bytes) /
                                                     static_cast<double>(activity.total_bytes)) *
                                   100));
  return fmt::format("{}{}  {}", activity.phase, share,
                     clock_text(std::floor(activity.phase_seconds)));
}

PhaseLine::PhaseLine(Style style) : style_(style) {
  if (style_ == Style::none) return;
  running = this;
  thread_ = std::thread([this] { watch(); });
}

PhaseLine::~PhaseLine() {
  if (!thread_.joinable()) return;
  running = nullptr;
  {
    std::lock_guard const lock(mutex_);
    ended_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (drawn_) live_line::clear();
}

void PhaseLine::use(Style style) {
  PhaseLine* const line = running;
  if (line == nullptr) return;
  std::lock_guard const lock(line->mutex_);
  line->style_ = style;
}

void PhaseLine::hold(bool held) {
  PhaseLine* const line = running;
  if (line == nullptr) return;
  std::lock_guard const lock(line->mutex_);
  line->held_ = held;
}

void PhaseLine::watch() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval, [this] { return ended_; }))
    if (!held_) show();
}

void PhaseLine::show() {
  Activity const now = Activity::now();
  if (now.phase.empty() || now.phase_seconds < moment_seconds) return;
  if (style_ == Style::live) {
    live_line::draw(phase_text(now).substr(0, live_line::width()));
    drawn_ = true;
  }
  if (style_ == Style::lines && noted_ != now.phase) {
    noted_ = now.phase;
    log_progress(now.phase);
  }
}

}  // namespace reshard
