#include "stages/stream/stream.hpp"

#include <thread>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/threads/activity.hpp"
#include "core/base/threads/stall_clock.hpp"
#include "core/device/strided_digest.hpp"
#include "stages/stream/stream_threads.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

// More rounds in flight hide no further latency; the bound matters for rounds without staging,
// which the ring does not limit.
constexpr std::size_t most_rounds_in_flight = 64;

// The lists of rounds with this many cells need far more memory than their bytes.
constexpr std::size_t many_cells = std::size_t{1} << 12;
constexpr std::size_t most_long_rounds = 4;

// The rounds in flight at which a rank claims further work: one round is written while the next is
// read, so that a slow rank does not keep more.
constexpr std::size_t most_rounds_at_claim = 2;

// The longest wait at a stop for the round that is being written.
constexpr std::chrono::seconds patience_with_writer{5};

// The interval at which a waiting calling thread checks the stop flag and the clock.
constexpr std::chrono::milliseconds look_interval{100};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

void StreamThreads::record(Error error) {
  std::lock_guard const lock(mutex_);
  if (!failure_) failure_ = std::move(error);
  failed_ = true;
  changed_.notify_all();
}

/// Throws when another thread has failed or a stop is wanted.
void StreamThreads::check_others() {
  if (failed_) throw GiveUp{};
  if (stopped()) throw interrupted();
}

Error StreamThreads::interrupted() const {
  std::string_view const perhaps =
      options_.exchanging
          ? " (mpirun also sends one when another rank has failed; that rank then reports why)"
          : "";
  return {ErrorKind::interrupted,
          fmt::format("stopped by a signal after {}{}. Nothing was published: run the same command "
                      "again to resume.",
                      counted(rounds_.load(), "round"), perhaps)};
}

void StreamThreads::guarded(void (StreamThreads::*loop)()) {
  std::optional<Error> const error = capture([&] {
    try {
      (this->*loop)();
    } catch (GiveUp const&) {
      // The thread that failed has recorded the error.
    }
  });
  if (error) record(*error);
}

std::byte* StreamThreads::take_staging(RoundWork const& work) {
  std::uint64_t const bytes = work.staging_bytes;
  std::size_t const most =
      work.cells.size() < many_cells ? most_rounds_in_flight : most_long_rounds;
  if (bytes > options_.memory_bytes)
    fail(
        ErrorKind::internal,
        "a round needs {} of staging memory, but the ring has {}. This is a bug of reshard: please report it with the job file.",
        human_bytes(bytes), human_bytes(options_.memory_bytes));
  Timed const timed(read_time_.stall_seconds);
  std::unique_lock lock(mutex_);
  std::optional<std::byte*> block;
  changed_.wait(lock,
                [&] { return failed_ || (ring_.blocks() < most && (block = ring_.take(bytes))); });
  if (failed_) throw GiveUp{};
  return *block;
}

void StreamThreads::await_claim() {
  if (!options_.claims_next || !options_.claims_next()) return;
  Timed const timed(read_time_.stall_seconds);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failed_ || ring_.blocks() <= most_rounds_at_claim; });
  if (failed_) throw GiveUp{};
}

void StreamThreads::put(Handover& handover, StagedRound round) {
  ++steps_;
  std::lock_guard const lock(mutex_);
  handover.rounds.push_back(std::move(round));
  changed_.notify_all();
}

void StreamThreads::close(Handover& handover) {
  ++steps_;
  std::lock_guard const lock(mutex_);
  handover.closed = true;
  changed_.notify_all();
}

void StreamThreads::trace(std::string_view lane, StagedRound const& round,
                          Trace::Clock::time_point began, std::uint64_t bytes) {
  if (options_.trace == nullptr) return;
  options_.trace->add(
      {lane, round.number, options_.trace->seconds(began), options_.trace->now(), bytes});
}

void StreamThreads::read_all() {
  for (std::uint64_t number = 0;; ++number) {
    check_others();
    await_claim();
    StagedRound round;
    {
      Timed const timed(read_time_.busy_seconds);
      std::optional<RoundWork> work = next_round_();
      if (!work) break;
      round = staged(*std::move(work));
    }
    round.number = number;
    round.staging = take_staging(round.work());
    {
      ProfilerRange const range("reshard: read");
      Timed const timed(read_time_.busy_seconds);
      auto const began = Trace::Clock::now();
      std::uint64_t const before = reader_.stats().bytes;
      read_shares_ = &round.records;
      reader_.read(round.work().reads, round.staging);
      trace("read", round, began, reader_.stats().bytes - before);
    }
    put(filled_, std::move(round));
  }
  close(filled_);
}

std::optional<StagedRound> StreamThreads::take(Handover& handover, Wait wait,
                                               double& stall_seconds) {
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

/// The next round without waiting; nullopt if there is none yet.
std::optional<StagedRound> StreamThreads::take_if_there(Handover& handover) {
  std::lock_guard const lock(mutex_);
  if (failed_) throw GiveUp{};
  if (handover.rounds.empty()) return std::nullopt;
  StagedRound round = std::move(handover.rounds.front());
  handover.rounds.pop_front();
  return round;
}

Error StreamThreads::nothing_moved() const {
  std::string const step = Activity::now().step;
  return {
      ErrorKind::stall,
      fmt::format(
          "no round was read or written for {} s, {} are done{}. Check the file systems of source "
          "and target, then run again.",
          options_.stall_timeout_seconds, rounds_.load(),
          step.empty() ? "" : "; it hangs during " + step)};
}

/// Waits like a condition variable, and meanwhile watches the stop flag and the progress of the
/// other threads. A thread that hangs in a system call cannot be joined: the job is ended.
void StreamThreads::wait_watched(std::unique_lock<std::mutex>& lock,
                                 std::function<bool()> const& ready) {
  std::uint64_t seen = steps_ + sink_.steps();
  StallClock stall_clock(options_.stall_timeout_seconds);
  while (!changed_.wait_for(lock, look_interval, [&] { return failed_ || ready(); })) {
    if (stopped()) throw interrupted();
    if (options_.watch) {
      lock.unlock();
      options_.watch();
      lock.lock();
    }
    if (std::uint64_t const now = steps_ + sink_.steps(); now != seen) {
      seen = now;
      stall_clock.begin();
    }
    if (stall_clock.is_over()) comm_.abort(nothing_moved());
  }
  if (failed_) throw GiveUp{};
}

void StreamThreads::exchange_all() {
  if (device_)
    exchange_on_device();
  else
    exchange_on_host();
  close(exchanged_);
  std::unique_lock lock(mutex_);
  wait_watched(lock, [&] { return written_all_; });
}

void StreamThreads::exchange_on_host() {
  while (auto round = take(filled_, Wait::watched, exchange_time_.stall_seconds)) {
    look();
    RoundWork const& work = round->work();
    if (!work.sends.empty() || !work.receives.empty()) RESHARD_EXPECT(options_.exchanging);
    ProfilerRange const range("reshard: copy and exchange");
    Timed const timed(exchange_time_.busy_seconds);
    auto const began = Trace::Clock::now();
    take_digests(*round);
    std::uint64_t const before = exchange_.stats().bytes_copied;
    exchange_.run(work, round->staging);
    trace("copy and exchange", *round, began, exchange_.stats().bytes_copied - before);
    ++rounds_;
    put(exchanged_, *std::move(round));
  }
}

void StreamThreads::take_digests(StagedRound& round) {
  if (options_.digests.empty()) return;
  round.digests = round.work().recorded;
  std::vector<DigestPart> const& parts = round.work().digests;
  std::vector<std::vector<DigestShare>> shares(parts.size());
  workers_.run(parts.size(), [&](std::size_t p, std::size_t) {
    DigestPart const& part = parts[p];
    if (part.digest == DigestId::none) return;
    std::uint64_t const share =
        options_.parts != nullptr
            ? options_.parts->add(part, round.staging)
            : strided_digest(round.staging + part.from, part.run_bytes, part.dims,
                             part.tensor_bytes - part.at - part.run_bytes);
    shares[p].push_back({part.digest, share, bytes_of(part)});
    if (options_.states != nullptr) options_.states->add(part, round.staging, shares[p]);
  });
  for (std::vector<DigestShare> const& one : shares)
    round.digests.insert(round.digests.end(), one.begin(), one.end());
  if (options_.records != nullptr && !options_.records->empty()) take_record_sums(round);
}

/// Adds the stored bytes in staging memory; see observer() for the others.
void StreamThreads::take_record_sums(StagedRound& round) const {
  for (DigestPart const& part : round.work().digests)
    options_.records->add(part, round.staging, round.records);
  if (!round.device_round) return;
  for (ViewPart const& part : round.device_round->computed) {
    SourceView const& view = options_.views[part.view];
    if (view.kind == ViewKind::dequantise)
      continue;  // its parts overlap: no record would be there once
    auto const element = static_cast<std::uint64_t>(bits(view.stored.dtype)) / 8;
    options_.records->add(
        view.stored.file,
        view.stored.offset_bytes + static_cast<std::uint64_t>(part.first) * element,
        {round.staging + part.stored, static_cast<std::size_t>(part.count) * element},
        round.records);
  }
}

/// On the host path the reader computes views, and only it has their stored bytes.
StoredBytesObserver StreamThreads::observer() {
  if (options_.records == nullptr || options_.records->empty() || options_.digests.empty())
    return {};
  return [this](std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes) {
    options_.records->add(file, offset_bytes, bytes, *read_shares_);
  };
}

/// On the writing thread, once the bytes of the round are with the system.
void StreamThreads::finish(StagedRound const& round) {
  for (DigestShare const& one : round.digests) options_.digests[index(one.digest)] ^= one.share;
  if (!options_.finished) return;
  std::vector<Extent> writes = round.work().writes;
  for (CloneExtent const& one : round.work().unread)
    writes.push_back({one.file, one.offset_bytes, 0, 0});
  options_.finished({round.number, round.work().cells, round.digests, round.records, writes});
}

/// The checks of the calling thread between its steps.
void StreamThreads::look() {
  check_others();
  if (options_.watch) options_.watch();
}

void StreamThreads::write_all() {
  while (auto const round = take(exchanged_, Wait::plain, write_time_.stall_seconds)) {
    {
      ProfilerRange const range("reshard: write");
      Timed const timed(write_time_.busy_seconds);
      auto const began = Trace::Clock::now();
      std::uint64_t const before = sink_.stats().bytes;
      sink_.take(round->work(), round->staging);
      trace("write", *round, began, sink_.stats().bytes - before);
      finish(*round);
    }
    ++steps_;
    std::lock_guard const lock(mutex_);
    ring_.give_back_oldest();
    changed_.notify_all();
  }
  sink_.finish();
  std::lock_guard const lock(mutex_);
  written_all_ = true;
  changed_.notify_all();
}

void StreamThreads::await_writer() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience_with_writer, [&] { return writer_ended_; });
}

StreamStats StreamThreads::run() {
  {
    std::jthread reader;
    std::jthread writer;
    std::optional<Error> const unstarted = capture([&] {
      reader = std::jthread([this] { guarded(&StreamThreads::read_all); });
      writer = std::jthread([this] {
        guarded(&StreamThreads::write_all);
        std::lock_guard const lock(mutex_);
        writer_ended_ = true;
        changed_.notify_all();
      });
    });
    if (unstarted) record(*unstarted);
    guarded(&StreamThreads::exchange_all);
    // Before joining: the other ranks need not wait until our reader and writer have come back from
    // the system.
    if (failed_ && options_.exchanging) {
      if (failure_->kind() == ErrorKind::interrupted) await_writer();
      if (options_.on_device && options_.on_device->link.transport != nullptr)
        options_.on_device->link.transport->cancel();
      comm_.abort(*failure_);
    }
  }
  if (failure_) throw *failure_;
  return collected();
}

StreamStats StreamThreads::collected() const {
  StreamStats stats;
  stats.rounds = rounds_;
  stats.bytes_read = reader_.stats().bytes;
  stats.bytes_copied = exchange_.stats().bytes_copied;
  stats.bytes_sent = exchange_.stats().bytes_sent;
  stats.bytes_received = exchange_.stats().bytes_received;
  stats.bytes_written = sink_.stats().bytes;
  stats.read_calls = reader_.stats().calls;
  stats.write_calls = sink_.stats().calls;
  stats.bytes_cloned = sink_.stats().cloned_bytes;
  stats.clone_calls = sink_.stats().clone_calls;
  stats.read = read_time_;
  double const waiting = exchange_.stats().waiting_seconds;
  if (device_) {
    DeviceExchangeStats const& moved = device_->stats();
    stats.bytes_copied = moved.bytes_copied;
    stats.bytes_sent = moved.bytes_sent;
    stats.bytes_received = moved.bytes_received;
    stats.bytes_uploaded = moved.bytes_uploaded;
    stats.bytes_downloaded = moved.bytes_downloaded;
    stats.device_high_water_bytes = device_->high_water_bytes();
  }
  stats.exchange = {exchange_time_.busy_seconds - waiting, exchange_time_.stall_seconds + waiting};
  stats.write = write_time_;
  stats.staging_high_water_bytes = ring_.high_water_bytes();
  stats.wall_seconds = seconds_since(begin_);
  return stats;
}

StreamStats stream(Comm const& comm, StreamOptions const& options, FileSet& sources,
                   ExtentSink& sink, RoundSource const& next_round) {
  Waiting const activity;  // this thread watches its own progress
  std::optional<StreamStats> stats;
  std::optional<Error> const error =
      capture([&] { stats = StreamThreads(comm, options, sources, sink, next_round).run(); });
  if (error && options.exchanging) comm.abort(*error);
  if (error) throw *error;
  return *stats;
}

}  // namespace reshard
