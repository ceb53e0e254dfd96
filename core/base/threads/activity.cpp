#include "core/base/threads/activity.hpp"

#include <atomic>
#include <mutex>

#include <fmt/format.h>

namespace reshard {
namespace {

std::atomic<std::uint64_t> ended_steps = 0;
std::atomic<int> waits = 0;
std::atomic<std::uint64_t> phase_done = 0;
std::atomic<std::uint64_t> phase_total = 0;
std::mutex mutex;  // of what follows
FileStep* newest = nullptr;
std::string& phase_name() {
  static std::string name;
  return name;
}
std::chrono::steady_clock::time_point phase_began;

}  // namespace

FileStep::FileStep(std::string_view doing, std::filesystem::path const& path)
    : doing_(doing), path_(path), began_(std::chrono::steady_clock::now()) {
  std::lock_guard const lock(mutex);
  before_ = newest;
  if (before_ != nullptr) before_->after_ = this;
  newest = this;
}

FileStep::~FileStep() {
  ++ended_steps;
  std::lock_guard const lock(mutex);
  if (before_ != nullptr) before_->after_ = after_;
  (after_ != nullptr ? after_->before_ : newest) = before_;
}

Waiting::Waiting() { ++waits; }
Waiting::~Waiting() { --waits; }

Activity Activity::now() {
  Activity activity;
  activity.steps = ended_steps;
  activity.waiting = waits > 0;
  activity.done_bytes = phase_done;
  activity.total_bytes = phase_total;
  std::lock_guard const lock(mutex);
  activity.phase = phase_name();
  activity.phase_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - phase_began).count();
  FileStep const* oldest = newest;
  for (FileStep const* step = newest; step != nullptr; step = step->before_)
    if (step->began_ <= oldest->began_) oldest = step;
  if (oldest != nullptr)
    activity.step = fmt::format("{} of {}", oldest->doing_, oldest->path_.string());
  return activity;
}

void begin_phase(std::string_view name) {
  std::lock_guard const lock(mutex);
  phase_name() = name;
  phase_began = std::chrono::steady_clock::now();
  phase_done = phase_total = 0;
}

void advance_phase(std::uint64_t done_bytes, std::uint64_t total_bytes) {
  phase_done = done_bytes;
  phase_total = total_bytes;
}

}  // namespace reshard
