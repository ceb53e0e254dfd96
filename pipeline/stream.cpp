#include "pipeline/stream.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "pipeline/staging_ring.hpp"
#include "stages/read/extent_reader.hpp"
#include "stages/redistribute/exchange.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

// More rounds than this in flight hide nothing more; the bound matters for rounds without staging, which the ring does not hold back.
constexpr std::size_t most_rounds_in_flight = 64;

// How often a waiting calling thread looks at the stop flag and at the clock.
constexpr std::chrono::milliseconds look_interval{100};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Adds the time until the end of its scope.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  ~Timed() { seconds_ += seconds_since(begin_); }
  Timed(Timed const&) = delete;
  Timed& operator=(Timed const&) = delete;

 private:
  double& seconds_;
  Clock::time_point begin_ = Clock::now();
};

/// A round whose staging block is `staging`.
struct StagedRound {
  RoundWork work;
  std::byte* staging = nullptr;
};

/// Another thread has failed; the reason is kept in Stream::failure_.
struct GiveUp {};

/// Rounds on their way from one thread to the next.
struct Handover {
  std::deque<StagedRound> rounds;
  bool closed = false;
};

/// Who waits: the calling thread watches over the others, which only wait.
enum class Wait { plain, watched };

[[noreturn]] void end_job(Comm const& comm, Error const& error) {
  fmt::print(stderr, "error: rank {}: {}\n", comm.rank(), error.sentence());
  std::fflush(stderr);
  comm.abort(exit_code(error.kind()));
}

class Stream {
 public:
  Stream(Comm const& comm, StreamOptions const& options, FileSet& sources, FileSet& targets, RoundSource const& next_round,
         WriteObserver const& observer)
      : comm_(comm),
        options_(options),
        next_round_(next_round),
        ring_(options.memory_bytes),
        reader_(sources, options.views),
        exchange_(comm, options.stall_timeout_seconds, [this] { check_others(); }),
        writer_(targets, observer, options.write_mode) {}

  StreamStats run();

 private:
  void read_all();
  void exchange_all();
  void write_all();
  void guarded(void (Stream::*loop)());

  std::byte* take_staging(std::uint64_t bytes);
  void put(Handover& handover, StagedRound round);
  void close(Handover& handover);
  std::optional<StagedRound> take(Handover& handover, Wait wait, double& stall_seconds);
  void wait_watched(std::unique_lock<std::mutex>& lock, std::function<bool()> const& ready);

  void record(Error error);
  void check_others();
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }
  Error stalled() const;
  StreamStats collected() const;

  Clock::time_point begin_ = Clock::now();
  Comm const& comm_;
  StreamOptions const& options_;
  RoundSource const& next_round_;
  StagingRing ring_;
  ExtentReader reader_;
  Exchange exchange_;
  ExtentWriter writer_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Handover filled_;
  Handover exchanged_;
  bool written_all_ = false;
  std::optional<Error> failure_;
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint64_t> steps_ = 0;  // of any thread; standing still for long is a stall

  std::atomic<std::uint64_t> rounds_ = 0;
  StageTime read_time_;
  StageTime exchange_time_;
  StageTime write_time_;
};

void Stream::record(Error error) {
  std::lock_guard const lock(mutex_);
  if (!failure_) failure_ = std::move(error);
  failed_ = true;
  changed_.notify_all();
}

/// Throws when another thread has failed or a stop is wanted.
void Stream::check_others() {
  if (failed_) throw GiveUp{};
  if (stopped())
    fail(ErrorKind::interrupted, "stopped by a signal after {} rounds. Nothing was published: run the same command again.", rounds_.load());
}

void Stream::guarded(void (Stream::*loop)()) {
  std::optional<Error> const error = capture([&] {
    try {
      (this->*loop)();
    } catch (GiveUp const&) {
      // The thread that failed has recorded why.
    }
  });
  if (error) record(*error);
}

std::byte* Stream::take_staging(std::uint64_t bytes) {
  if (bytes > options_.memory_bytes)
    fail(ErrorKind::internal, "a round needs {} of staging memory, {} were agreed. This is a bug of reshard: please report it with the job file.",
         human_bytes(bytes), human_bytes(options_.memory_bytes));
  Timed const timed(read_time_.stall_seconds);
  std::unique_lock lock(mutex_);
  std::optional<std::byte*> block;
  changed_.wait(lock, [&] { return failed_ || (ring_.blocks() < most_rounds_in_flight && (block = ring_.take(bytes))); });
  if (failed_) throw GiveUp{};
  return *block;
}

void Stream::put(Handover& handover, StagedRound round) {
  ++steps_;
  std::lock_guard const lock(mutex_);
  handover.rounds.push_back(std::move(round));
  changed_.notify_all();
}

void Stream::close(Handover& handover) {
  ++steps_;
  std::lock_guard const lock(mutex_);
  handover.closed = true;
  changed_.notify_all();
}

void Stream::read_all() {
  for (;;) {
    check_others();
    StagedRound round;
    {
      Timed const timed(read_time_.busy_seconds);
      std::optional<RoundWork> work = next_round_();
      if (!work) break;
      round.work = *std::move(work);
    }
    round.staging = take_staging(round.work.staging_bytes);
    {
      Timed const timed(read_time_.busy_seconds);
      reader_.read(round.work.reads, round.staging);
    }
    put(filled_, std::move(round));
  }
  close(filled_);
}

std::optional<StagedRound> Stream::take(Handover& handover, Wait wait, double& stall_seconds) {
  Timed const timed(stall_seconds);
  std::unique_lock lock(mutex_);
  auto const ready = [&] { return handover.closed || !handover.rounds.empty(); };
  if (wait == Wait::watched)
    wait_watched(lock, ready);
  else
    changed_.wait(lock, [&] { return failed_ || ready(); });
  if (failed_) throw GiveUp{};
  if (handover.rounds.empty()) return std::nullopt;
  StagedRound round = std::move(handover.rounds.front());
  handover.rounds.pop_front();
  return round;
}

Error Stream::stalled() const {
  return {ErrorKind::stall,
          fmt::format("no round was read or written for {} s, {} are done. Look at the file systems of source and target, then run again.",
                      options_.stall_timeout_seconds, rounds_.load())};
}

/// Waits like a condition variable, and meanwhile watches the stop flag and that the other threads move. A thread that hangs in a system call
/// cannot be joined: the job is ended.
void Stream::wait_watched(std::unique_lock<std::mutex>& lock, std::function<bool()> const& ready) {
  std::uint64_t seen = steps_;
  auto since = Clock::now();
  while (!changed_.wait_for(lock, look_interval, [&] { return failed_ || ready(); })) {
    if (stopped())
      fail(ErrorKind::interrupted, "stopped by a signal after {} rounds. Nothing was published: run the same command again.", rounds_.load());
    if (std::uint64_t const now = steps_; now != seen) {
      seen = now;
      since = Clock::now();
    }
    if (seconds_since(since) > options_.stall_timeout_seconds) end_job(comm_, stalled());
  }
  if (failed_) throw GiveUp{};
}

void Stream::exchange_all() {
  while (auto round = take(filled_, Wait::watched, exchange_time_.stall_seconds)) {
    check_others();
    if (!round->work.sends.empty() || !round->work.receives.empty()) RESHARD_EXPECT(options_.exchanging);
    Timed const timed(exchange_time_.busy_seconds);
    exchange_.run(round->work, round->staging);
    ++rounds_;
    put(exchanged_, *std::move(round));
  }
  close(exchanged_);
  std::unique_lock lock(mutex_);
  wait_watched(lock, [&] { return written_all_; });
}

void Stream::write_all() {
  while (auto const round = take(exchanged_, Wait::plain, write_time_.stall_seconds)) {
    {
      Timed const timed(write_time_.busy_seconds);
      writer_.write(round->work.writes, round->staging);
    }
    ++steps_;
    std::lock_guard const lock(mutex_);
    ring_.give_back_oldest();
    changed_.notify_all();
  }
  std::lock_guard const lock(mutex_);
  written_all_ = true;
  changed_.notify_all();
}

StreamStats Stream::run() {
  {
    std::jthread reader;
    std::jthread writer;
    std::optional<Error> const unstarted = capture([&] {
      reader = std::jthread([this] { guarded(&Stream::read_all); });
      writer = std::jthread([this] { guarded(&Stream::write_all); });
    });
    if (unstarted) record(*unstarted);
    guarded(&Stream::exchange_all);
    // Before joining: the other ranks need not wait until our reader and writer have come back from the system.
    if (failed_ && options_.exchanging) end_job(comm_, *failure_);
  }
  if (failure_) throw *failure_;
  return collected();
}

StreamStats Stream::collected() const {
  StreamStats stats;
  stats.rounds = rounds_;
  stats.bytes_read = reader_.stats().bytes;
  stats.bytes_copied = exchange_.stats().bytes_copied;
  stats.bytes_sent = exchange_.stats().bytes_sent;
  stats.bytes_received = exchange_.stats().bytes_received;
  stats.bytes_written = writer_.stats().bytes;
  stats.read_calls = reader_.stats().calls;
  stats.write_calls = writer_.stats().calls;
  stats.read = read_time_;
  double const waiting = exchange_.stats().waiting_seconds;
  stats.exchange = {exchange_time_.busy_seconds - waiting, exchange_time_.stall_seconds + waiting};
  stats.write = write_time_;
  stats.staging_high_water_bytes = ring_.high_water_bytes();
  stats.wall_seconds = seconds_since(begin_);
  stats.write_mode = writer_.mode();
  return stats;
}

}  // namespace

StreamStats stream(Comm const& comm, StreamOptions const& options, FileSet& sources, FileSet& targets, RoundSource const& next_round,
                   WriteObserver const& observer) {
  std::optional<StreamStats> stats;
  std::optional<Error> const error = capture([&] { stats = Stream(comm, options, sources, targets, next_round, observer).run(); });
  if (error && options.exchanging) end_job(comm, *error);
  if (error) throw *error;
  return *stats;
}

}  // namespace reshard
