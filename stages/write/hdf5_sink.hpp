#pragma once

#include <atomic>
#include <filesystem>

#include "core/containers/hdf5/parallel_writer.hpp"
#include "core/transport/comm.hpp"
#include "stages/write/extent_sink.hpp"
#include "stages/write/extent_writer.hpp"

namespace reshard {

/// Writes rounds into HDF5 containers that exist at full size, through libhdf5 and MPI-IO. With
/// hdf5::Transfer::collective the ranks write in step: before each step they exchange the number of
/// calls for each dataset, and all make as many as the rank with the most; a rank without rounds
/// takes part in finish() until all have ended. A failing rank leaves the others waiting:
/// StreamOptions::exchanging must be set.
class Hdf5Sink : public ExtentSink {
 public:
  /// Opens the files; collective. If that or close() fails, or takes `stall_timeout_seconds`, the
  /// job ends. `comm` and `observer` outlive it; the observer may be empty.
  Hdf5Sink(Comm const& comm, std::span<std::filesystem::path const> files, hdf5::Transfer transfer,
           WriteObserver const& observer, double stall_timeout_seconds);

  void write(std::span<Extent const> extents, std::byte* staging) override;
  void finish() override;
  void close() override;
  std::uint64_t steps() const override { return steps_; }
  WriteStats const& stats() const override { return stats_; }
  std::string_view mode_name() const override;

 private:
  enum class Rest { more, none };  ///< whether this rank has rounds after a step
  std::vector<hdf5::Piece> pieces_of(std::span<Extent const> sorted,
                                     std::byte const* staging) const;
  bool step_together(std::span<hdf5::Piece const> pieces, Rest rest);

  Comm const& comm_;
  hdf5::Transfer transfer_;
  WriteObserver const& observer_;
  double stall_timeout_seconds_;
  std::unique_ptr<hdf5::ParallelWriter> writer_;
  WriteStats stats_;
  std::atomic<std::uint64_t> steps_ = 0;
};

}  // namespace reshard
