#include "stages/write/hdf5_sink.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "core/base/threads/stall_clock.hpp"
#include "core/plan/views/extent_batch.hpp"

namespace reshard {
namespace {

// How often the watch over libhdf5 checks its clock.
constexpr std::chrono::milliseconds look_interval{100};

/// How many calls a rank has for each dataset in one step, and whether it has rounds after it.
struct StepPart {
  std::uint64_t more = 0;
  std::map<std::uint64_t, std::uint64_t> calls;

  std::string packed() const {
    std::vector<std::uint64_t> words = {more};
    for (auto const& [dataset, count] : calls) words.insert(words.end(), {dataset, count});
    return {reinterpret_cast<char const*>(words.data()), words.size() * sizeof(std::uint64_t)};
  }

  /// Merges two ranks: more rounds if either has more; for each dataset the larger number of calls.
  void join(std::string const& other) {
    std::vector<std::uint64_t> words(other.size() / sizeof(std::uint64_t));
    std::memcpy(words.data(), other.data(), other.size());
    more |= words.at(0);
    for (std::size_t i = 1; i + 1 < words.size(); i += 2) {
      std::uint64_t& count = calls[words[i]];
      count = std::max(count, words[i + 1]);
    }
  }
};

/// Work of all ranks inside libhdf5: the others cannot be informed that this one has failed, and
/// some failures leave even this one waiting for them.
void or_abort(Comm const& comm, std::string_view doing, double timeout_seconds,
              std::function<void()> const& work) {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::jthread const watch([&] {
    std::unique_lock lock(mutex);
    for (StallClock waiting(timeout_seconds); !waiting.is_over();)
      if (ended.wait_for(lock, look_interval, [&] { return done; })) return;
    comm.abort(Error(
        ErrorKind::stall,
        fmt::format(
            "libhdf5 has been {} the target's files for {} s. Check for failed writes above and "
            "check the file system, then run again, perhaps with target.io = \"direct\".",
            doing, timeout_seconds)));
  });
  if (auto const error = capture(work)) comm.abort(*error);
  std::lock_guard const lock(mutex);
  done = true;
  ended.notify_all();
}

/// Open MPI 4.1 aggregates collective writes by one of several components, and these three report
/// success for a write that the system refused. Open MPI reads the variable when it opens its first
/// file; a value set by the user stays.
void avoid_silent_aggregations() { ::setenv("OMPI_MCA_fcoll", "^vulcan,dynamic,dynamic_gen2", 0); }

}  // namespace

Hdf5Sink::Hdf5Sink(Comm const& comm, std::span<std::filesystem::path const> files,
                   hdf5::Transfer transfer, WriteObserver const& observer,
                   double stall_timeout_seconds)
    : comm_(comm),
      transfer_(transfer),
      observer_(observer),
      stall_timeout_seconds_(stall_timeout_seconds) {
  avoid_silent_aggregations();
  or_abort(comm, "opening", stall_timeout_seconds, [&] {
    writer_ = std::make_unique<hdf5::ParallelWriter>(files, comm.handle(), transfer);
  });
}

std::string_view Hdf5Sink::mode_name() const {
  return transfer_ == hdf5::Transfer::collective ? "HDF5 collective" : "HDF5 independent";
}

void Hdf5Sink::write(std::span<Extent const> extents, std::byte* staging) {
  std::vector<Extent> const sorted = by_place(extents);
  if (observer_)
    for (Extent const& extent : sorted)
      observer_(extent.file, extent.offset_bytes, {staging + extent.at, extent.bytes});
  std::vector<hdf5::Piece> const pieces = pieces_of(sorted, staging);
  if (transfer_ == hdf5::Transfer::collective) {
    step_together(pieces, Rest::more);
  } else {
    for (hdf5::Piece const& piece : pieces) {
      writer_->write(piece);
      ++steps_;
    }
  }
  for (Extent const& extent : sorted) stats_.bytes += extent.bytes;
  stats_.calls += pieces.size();
}

/// Neighbours both in a file and in staging go into one piece.
std::vector<hdf5::Piece> Hdf5Sink::pieces_of(std::span<Extent const> sorted,
                                             std::byte const* staging) const {
  std::vector<hdf5::Piece> pieces;
  for (std::size_t i = 0; i < sorted.size();) {
    Extent run = sorted[i];
    for (++i; i < sorted.size() && sorted[i].file == run.file &&
              sorted[i].offset_bytes == run.offset_bytes + run.bytes &&
              sorted[i].at == run.at + run.bytes;
         ++i)
      run.bytes += sorted[i].bytes;
    std::vector<hdf5::Piece> const more =
        writer_->pieces(run.file, run.offset_bytes, {staging + run.at, run.bytes});
    pieces.insert(pieces.end(), more.begin(), more.end());
  }
  return pieces;
}

/// Returns whether some rank has more. `pieces` are in the order of their datasets.
bool Hdf5Sink::step_together(std::span<hdf5::Piece const> pieces, Rest rest) {
  StepPart step;
  step.more = rest == Rest::more ? 1 : 0;
  for (hdf5::Piece const& piece : pieces) ++step.calls[piece.dataset];
  for (std::string const& other : comm_.all_gather(step.packed())) step.join(other);
  std::size_t next = 0;
  for (auto const& [dataset, calls] : step.calls)
    for (std::uint64_t call = 0; call < calls; ++call) {
      if (next < pieces.size() && pieces[next].dataset == dataset)
        writer_->write(pieces[next++]);
      else
        writer_->take_part(dataset);
      ++steps_;
    }
  ++steps_;
  RESHARD_EXPECT(next == pieces.size());
  return step.more != 0;
}

void Hdf5Sink::finish() {
  if (transfer_ == hdf5::Transfer::collective)
    while (step_together({}, Rest::none)) {
    }
}

void Hdf5Sink::close() {
  or_abort(comm_, "closing", stall_timeout_seconds_, [&] { writer_->close(); });
}

}  // namespace reshard
