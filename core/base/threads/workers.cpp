#include "core/base/threads/workers.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <system_error>

#include <sys/resource.h>

#include "core/base/capture.hpp"

namespace reshard {
namespace {

/// Requests of one rank that a server has at a time.
constexpr std::size_t most_overlapped = 64;
/// Fewer items are not worth a thread.
constexpr std::size_t items_per_thread = 2;
/// A call has one file open, and makes room for another that is closed late.
constexpr std::size_t descriptors_per_call = 2;
/// With this limit of descriptors, most_overlapped calls always have enough.
constexpr std::size_t enough_descriptors = 1024;

}  // namespace

Workers::Workers(std::size_t threads) {
  try {
    for (std::size_t worker = 1; worker < threads; ++worker)
      threads_.emplace_back([this, worker] { serve(worker); });
  } catch (std::system_error const& error) {
    {
      std::lock_guard const lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    throw thread_refused(error.code())
        .in(fmt::format("{} of {} threads run", threads_.size() + 1, threads));
  }
}

Workers::~Workers() {
  {
    std::lock_guard const lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

void Workers::run(std::size_t items, Work const& work) {
  if (threads_.empty() || items < 2) {
    for (std::size_t item = 0; item < items; ++item) work(item, 0);
    return;
  }
  {
    std::lock_guard const lock(mutex_);
    work_ = &work;
    items_ = items;
    next_ = 0;
    failure_.reset();
    busy_ = threads_.size();
    ++rounds_;
  }
  changed_.notify_all();
  take_part(0);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return busy_ == 0; });
  if (failure_) throw *failure_;
}

void Workers::serve(std::size_t worker) {
  for (std::size_t seen = 0;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ended_ || rounds_ != seen; });
      if (ended_) return;
      seen = rounds_;
    }
    take_part(worker);
    std::lock_guard const lock(mutex_);
    if (--busy_ == 0) changed_.notify_all();
  }
}

void Workers::take_part(std::size_t worker) {
  for (;;) {
    std::size_t item = 0;
    {
      std::lock_guard const lock(mutex_);
      if (next_ == items_ || failure_) return;
      item = next_++;
    }
    std::optional<Error> const error = capture([&] { (*work_)(item, worker); });
    if (!error) continue;
    std::lock_guard const lock(mutex_);
    if (failure_ && failed_item_ < item) continue;
    failure_ = *error;
    failed_item_ = item;
  }
}

namespace {

/// The number of calls at a time that leaves this process enough descriptors if its limit is low.
std::size_t calls_with_files() {
  struct rlimit files {};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= enough_descriptors)
    return most_overlapped;
  std::error_code problem;
  auto const open = static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd", problem), {}));
  std::size_t const left = files.rlim_cur > open ? files.rlim_cur - open : 0;
  return std::clamp<std::size_t>(left / descriptors_per_call, 1, most_overlapped);
}

/// As many as the system gives; one works without any.
std::unique_ptr<Workers> given_workers(std::size_t threads) {
  for (;; threads /= 2) {
    std::unique_ptr<Workers> workers;
    auto const refused = capture([&] { workers = std::make_unique<Workers>(threads); });
    if (!refused) return workers;
    if (threads == 1) throw *refused;
  }
}

}  // namespace

void overlapped(std::size_t items, std::function<void(std::size_t item)> const& work) {
  std::size_t const most = std::min(items / items_per_thread, calls_with_files());
  given_workers(std::max<std::size_t>(most, 1))->run(items, [&](std::size_t item, std::size_t) {
    work(item);
  });
}

}  // namespace reshard
