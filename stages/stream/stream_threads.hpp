#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/threads/workers.hpp"
#include "core/transport/monitor/patience.hpp"
#include "core/transport/transports.hpp"
#include "stages/read/extent_reader.hpp"
#include "stages/redistribute/exchange.hpp"
#include "stages/stream/staging_ring.hpp"
#include "stages/stream/stream.hpp"

namespace reshard {

/// Adds the time of its scope.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  ~Timed() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  Timed(Timed const&) = delete;
  Timed& operator=(Timed const&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// A round whose staging block is `staging`.
struct StagedRound {
  std::uint64_t number = 0;
  RoundWork own_work;                         ///< on the host path
  std::unique_ptr<DeviceRound> device_round;  ///< on the GPU path
  std::byte* staging = nullptr;
  std::vector<DigestShare> digests;
  std::vector<RecordShare> records;

  RoundWork const& work() const { return device_round ? device_round->work : own_work; }
};

/// Thrown in a thread after another one has failed; StreamThreads::failure_ has the error.
struct GiveUp {};

/// Rounds on their way from one thread to the next.
struct Handover {
  std::deque<StagedRound> rounds;
  bool closed = false;
};

/// The kind of waiting: the calling thread watches the others meanwhile, which only wait.
enum class Wait { plain, watched };

/// The threads of stream(): the calling one, one that reads and one that writes.
class StreamThreads {
 public:
  StreamThreads(Comm const& comm, StreamOptions const& options, FileSet& sources, ExtentSink& sink,
                RoundSource const& next_round)
      : comm_(comm),
        options_(options),
        sources_(sources),
        next_round_(next_round),
        ring_(options.memory_bytes),
        reader_(sources, options.views, observer(), options.threads),
        transport_(make_transport("mpi", {.comm = comm})),
        workers_(options.threads),
        exchange_(
            comm, *transport_, options.stall_timeout_seconds, [this] { check_others(); },
            &workers_),
        sink_(sink) {
    if (options.on_device) open_device(*options.on_device);
  }

  StreamStats run();

 private:
  using Clock = std::chrono::steady_clock;

  void read_all();
  void exchange_all();
  void exchange_on_host();
  void exchange_on_device();
  bool move_on_device(std::deque<StagedRound>& under_way);
  void wait_for_device(Patience& patience);
  void write_all();
  StoredBytesObserver observer();
  void take_digests(StagedRound& round);
  void take_record_sums(StagedRound& round) const;
  void finish(StagedRound const& round);
  void look();
  void open_device(DeviceSetup const& setup);
  void guarded(void (StreamThreads::*loop)());

  StagedRound staged(RoundWork work);
  std::byte* take_staging(RoundWork const& work);
  void await_claim();
  void put(Handover& handover, StagedRound round);
  void close(Handover& handover);
  std::optional<StagedRound> take(Handover& handover, Wait wait, double& stall_seconds);
  std::optional<StagedRound> take_if_there(Handover& handover);
  void trace(std::string_view lane, StagedRound const& round, Trace::Clock::time_point began,
             std::uint64_t bytes);
  void wait_watched(std::unique_lock<std::mutex>& lock, std::function<bool()> const& ready);

  void record(Error error);
  void await_writer();
  void check_others();
  bool stopped() const {
    return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed);
  }
  Error nothing_moved() const;
  Error interrupted() const;
  StreamStats collected() const;

  Clock::time_point begin_ = Clock::now();
  Comm const& comm_;
  StreamOptions const& options_;
  FileSet const& sources_;
  RoundSource const& next_round_;
  StagingRing ring_;
  std::vector<RecordShare>* read_shares_ =
      nullptr;  ///< of the round that is being read: sums of the stored bytes of views
  ExtentReader reader_;
  std::unique_ptr<Transport> transport_;  ///< of host memory
  Workers workers_;                       ///< of the calling thread
  Exchange exchange_;
  ExtentSink& sink_;
  // Of the GPU path. The exchange is destroyed before the memory that it copies from.
  std::unique_ptr<DeviceMemory> pinned_;
  std::unique_ptr<DeviceExchange> device_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Handover filled_;
  Handover exchanged_;
  bool written_all_ = false;
  bool writer_ended_ = false;
  std::optional<Error> failure_;
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint64_t> steps_ = 0;  // of all threads; no change for the timeout is a stall

  std::atomic<std::uint64_t> rounds_ = 0;
  StageTime read_time_;
  StageTime exchange_time_;
  StageTime write_time_;
};

}  // namespace reshard
