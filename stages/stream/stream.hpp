#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "core/io/file_set.hpp"
#include "core/plan/cells/round.hpp"
#include "core/plan/views/source_view.hpp"
#include "core/transport/comm.hpp"
#include "stages/read/record_shares.hpp"
#include "stages/redistribute/device_exchange.hpp"
#include "stages/stream/part_sums.hpp"
#include "stages/stream/state_sums.hpp"
#include "stages/stream/trace.hpp"
#include "stages/write/extent_sink.hpp"

namespace reshard {

/// Returns the rounds of this rank in order, then nullopt. Called from one thread, not the
/// caller's.
using RoundSource = std::function<std::optional<RoundWork>()>;

/// The GPU path: a device, the memory of it for this rank, and the link for messages between
/// devices.
struct DeviceSetup {
  Device* device = nullptr;
  std::uint64_t memory_bytes = 0;
  DeviceLink link;
};

/// A round of this rank that is written.
struct FinishedRound {
  std::uint64_t number = 0;              ///< from 0; the same on every rank if rounds have messages
  CellRange cells;                       ///< complete in the target
  std::span<DigestShare const> digests;  ///< of the bytes that this rank has read for it
  std::span<RecordShare const> records;  ///< of the source's records, of the bytes read for it
  std::span<Extent const> writes;        ///< those of unread bytes have size 0
};

struct StreamOptions {
  /// The staging arena, allocated once. Rounds overlap as far as their staging fits: give at least
  /// three times the usual round.
  std::uint64_t memory_bytes = std::uint64_t{256} << 20;
  /// Whether some round of some rank has messages, or the ranks of the sink act together. A failure
  /// then ends the job by Comm::abort(), because other ranks may be waiting.
  bool exchanging = false;
  /// The number of threads of each stage: of concurrent requests to file systems and of concurrent
  /// copies of a round. At least 1.
  std::size_t threads = 1;
  /// A rank that neither exchanges, reads nor writes a byte for this time while it waits ends the
  /// job with exit code 8.
  double stall_timeout_seconds = 600;
  /// Checked between rounds; once true, no further round begins and stream() throws an Error of
  /// kind interrupted. May be nullptr. Must outlive the call.
  std::atomic<bool> const* stop = nullptr;
  /// Tensors that are computed while they are read: view v is source file number sources.size() +
  /// v. Must outlive the call.
  std::span<SourceView const> views = {};
  /// If set, rounds are rearranged on a device, and the staging memory is pinned for it. Its
  /// objects must outlive the call.
  std::optional<DeviceSetup> on_device = std::nullopt;
  /// The digests of the source, by tensor: the shares of what this rank reads are added once their
  /// round is written. Empty, or with an entry for every tensor that rounds name. Must outlive the
  /// call.
  std::span<std::uint64_t> digests = {};
  /// Takes the sums of zip records of the source, over the bytes of digests. May be nullptr. Must
  /// outlive the call.
  RecordSums const* records = nullptr;
  /// Checks the optimizer state that has digests. May be nullptr. Must outlive the call.
  StateSums const* states = nullptr;
  /// Takes the sums of layers and experts, over the bytes of digests computed on the host. May be
  /// nullptr. Must outlive the call.
  PartSums* parts = nullptr;
  /// Whether the next round claims work that other ranks could do as well: it is then requested
  /// only when few rounds are in flight. Called like the round source. May be empty.
  std::function<bool()> claims_next = {};
  /// Called for every round after it is written and counted, in order, by the writing thread. May
  /// be empty.
  std::function<void(FinishedRound const&)> finished = {};
  /// Called repeatedly by the calling thread, at least ten times a second while it waits. May be
  /// empty.
  std::function<void()> watch = {};
  /// Receives the time spans of every stage. May be nullptr. Must outlive the call.
  Trace* trace = nullptr;
};

/// The busy and stall times of one stage. Stall is waiting for the previous stage, for memory, or
/// for another rank.
struct StageTime {
  double busy_seconds = 0;
  double stall_seconds = 0;
};

/// Statistics of this rank only.
struct StreamStats {
  std::uint64_t rounds = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_copied = 0;    ///< by local copies, packing and unpacking
  std::uint64_t bytes_sent = 0;      ///< to other ranks
  std::uint64_t bytes_received = 0;  ///< from other ranks
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_cloned = 0;      ///< of the target: shared with the source, not written
  std::uint64_t bytes_uploaded = 0;    ///< to the device
  std::uint64_t bytes_downloaded = 0;  ///< from the device
  std::uint64_t read_calls = 0;
  std::uint64_t write_calls = 0;
  std::uint64_t clone_calls = 0;
  StageTime read;
  StageTime exchange;
  StageTime write;
  std::uint64_t staging_high_water_bytes =
      0;  ///< in pages; never above StreamOptions::memory_bytes
  std::uint64_t device_high_water_bytes =
      0;  ///< never above DeviceSetup::memory_bytes, rounded up to 256
  double wall_seconds = 0;
};

/// Carries out all rounds of this rank: while round k is exchanged on the calling thread, one
/// thread reads the rounds after it and one writes those before it, by `sink`. Returns when the
/// last byte was passed to the system, without a sync. Not collective by itself: ranks meet only in
/// messages, so every rank of an exchanging job must call it.
///
///   read k+1 | copy and exchange k | write k-1        staging is a ring: a round's block is free
///   again once it is written
///
/// With options.on_device several rounds are on the device at the same time, see DeviceExchange.
///
/// A round that needs more than memory_bytes is an internal Error, one that needs more of a
/// device's memory an Error of kind resources. The first failure of any thread stops the others and
/// is thrown here once they have ended; the caller makes the ranks agree (together()). With
/// options.exchanging the sentence goes to stderr instead and the job ends with the exit code of
/// the error on every rank, 75 after a stop.
StreamStats stream(Comm const& comm, StreamOptions const& options, FileSet& sources,
                   ExtentSink& sink, RoundSource const& next_round);

}  // namespace reshard
