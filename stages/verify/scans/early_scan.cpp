#include "stages/verify/scans/early_scan.hpp"

#include <array>
#include <chrono>
#include <utility>

namespace reshard {
namespace {

/// Thrown to end the reading of an abandoned file.
struct GivenUp {};

constexpr std::chrono::milliseconds between_looks(100);

}  // namespace

EarlyScan::EarlyScan(Parts parts) : parts_(std::move(parts)), thread_([this] { run(); }) {}

EarlyScan::~EarlyScan() {
  std::lock_guard const lock(mutex_);
  stopped_ = true;
  ended_ = true;
  waiting_.clear();
  changed_.notify_all();
}

void EarlyScan::add(std::uint32_t file, std::function<void()> finish) {
  std::lock_guard const lock(mutex_);
  RESHARD_EXPECT(!ended_);
  waiting_.push_back({file, std::move(finish)});
  changed_.notify_all();
}

void EarlyScan::check() {
  std::lock_guard const lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void EarlyScan::end() {
  std::unique_lock lock(mutex_);
  ended_ = true;
  waiting_.clear();
  changed_.notify_all();
  changed_.wait(lock, [&] { return !finishing_; });
  if (failure_) std::rethrow_exception(failure_);
}

EarlyScan::Found EarlyScan::wait(std::function<void()> const& meanwhile) {
  std::unique_lock lock(mutex_);
  RESHARD_EXPECT(ended_);
  while (!changed_.wait_for(lock, between_looks, [&] { return done_; })) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  if (failure_) std::rethrow_exception(failure_);
  if (!lane_) return {};
  return {{lane_->shares().begin(), lane_->shares().end()}, lane_->found()};
}

void EarlyScan::run() {
  std::exception_ptr failure;
  try {
    read_all();
  } catch (GivenUp const&) {
  } catch (...) {
    failure = std::current_exception();
  }
  std::lock_guard const lock(mutex_);
  failure_ = failure;
  finishing_ = false;
  done_ = true;
  changed_.notify_all();
}

/// False when there is no more.
bool EarlyScan::begin_next(Task& task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
  if (waiting_.empty()) return false;
  task = std::move(waiting_.front());
  waiting_.pop_front();
  begun_.insert(task.file);
  finishing_ = true;
  return true;
}

void EarlyScan::read_all() {
  for (Task task; begin_next(task);) {
    task.finish();
    {
      std::lock_guard const lock(mutex_);
      finishing_ = false;
      changed_.notify_all();
    }
    read(task.file);
  }
}

void EarlyScan::read(std::uint32_t file) {
  if (!lane_) {
    work_ = parts_.work();
    regions_ = std::make_unique<RegionsByFile>(*work_, parts_.files.size());
    lane_ = std::make_unique<LaneScan>(ScanTask{parts_.files, *work_, *regions_, parts_.options},
                                       [this](std::uint64_t bytes) {
                                         bytes_read_ += bytes;
                                         if (stopped_) throw GivenUp{};
                                       });
  }
  std::array const mine{FileShare{.file = file}};
  lane_->run(mine);
}

std::vector<bool> begun_early(Comm const& comm, EarlyScan const* mine, std::size_t files) {
  constexpr std::size_t bits = 64;
  std::vector<std::uint64_t> words((files + bits - 1) / bits);
  if (mine != nullptr)
    for (std::uint32_t const file : mine->begun())
      words[file / bits] |= std::uint64_t{1} << file % bits;
  comm.xor_all(words);
  std::vector<bool> begun(files);
  for (std::size_t file = 0; file < files; ++file)
    begun[file] = (words[file / bits] >> file % bits & 1U) != 0;
  return begun;
}

}  // namespace reshard
