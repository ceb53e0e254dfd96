#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/files/ring_space.hpp"
#include "core/device/device.hpp"
#include "core/io/file_set.hpp"
#include "core/transport/transport.hpp"
#include "stages/redistribute/device_round.hpp"

namespace reshard {

/// A step of a round on the device from `begin` to `end`, in seconds since start_time().
struct DeviceSpan {
  std::string_view name;  ///< upload, pack, exchange, unpack, download
  std::uint64_t round = 0;
  double begin = 0;
  double end = 0;
  std::uint64_t bytes = 0;
};

struct DeviceExchangeStats {
  std::uint64_t bytes_copied = 0;
  std::uint64_t bytes_uploaded = 0;
  std::uint64_t bytes_downloaded = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

/// The path of messages: from the device's memory on a stream of it (NCCL), or from the host's
/// staging memory (no stream).
struct DeviceLink {
  Transport* transport = nullptr;  ///< may be nullptr if no round has messages
  DeviceStream* stream = nullptr;
};

/// Carries out rounds on a device, several at a time:
///
///   upload k+2 | pack k+1 | messages k+1 | unpack k | download k-1        each on a stream of its
///   own, ordered by events
///
/// Rounds end in the order in which they began. No call waits. Used by one thread.
class DeviceExchange {
 public:
  struct Parts {
    Device& device;
    std::uint64_t memory_bytes = 0;  ///< of the device, allocated at once; no round may need more
    DeviceLink link;
    std::span<SourceView const> views;                ///< that the rounds compute
    FileSet const& sources;                           ///< for messages
    std::function<void(DeviceSpan const&)> observer;  ///< may be empty
  };

  /// The objects in `parts` must outlive the exchange. An Error of kind resources if the device
  /// lacks the memory.
  explicit DeviceExchange(Parts parts);
  /// Waits a while for rounds under way: memory that a device copies from must not be freed.
  ~DeviceExchange();
  DeviceExchange(DeviceExchange const&) = delete;
  DeviceExchange& operator=(DeviceExchange const&) = delete;

  MessagePlace message_place() const {
    return parts_.link.stream == nullptr ? MessagePlace::host : MessagePlace::device;
  }

  /// Begins a round, whose bytes were read into `staging`; false if the device's memory has no room
  /// for it while others are under way. `staging` and `round` must stay until the round has ended.
  bool begin(DeviceRound const& round, std::byte* staging);
  /// Advances rounds as far as possible; true if there was progress. Throws errors of the device
  /// and of messages.
  bool advance();
  /// The number of rounds under way.
  std::size_t under_way() const { return flights_.size(); }
  /// Removes the oldest round if it has ended; the bytes to be written are then in its staging
  /// block.
  bool take_ended();

  DeviceExchangeStats const& stats() const { return stats_; }
  /// The zero of DeviceSpan's seconds.
  std::chrono::steady_clock::time_point start_time() const { return start_time_; }
  std::uint64_t high_water_bytes() const { return space_.high_water_bytes(); }

 private:
  using Event = std::unique_ptr<DeviceEvent>;
  enum class Step {
    packing,     ///< uploads and packing are in their streams, with messages of host memory their
                 ///< download, too
    exchanging,  ///< messages are in flight
    unpacking,   ///< all remaining work is in its stream
  };
  /// Beginnings exist only for the observer.
  struct Events {
    Event upload_began, uploaded, pack_began, packed, staged, arrived, unpack_began, unpacked,
        download_began, downloaded;
  };
  struct Flight {
    DeviceRound const* round = nullptr;
    std::byte* staging = nullptr;
    std::byte* on_device = nullptr;
    std::uint64_t number = 0;
    Step step = Step::packing;
    std::size_t first_message = 0;
    std::size_t receives_left = 0;
    std::size_t sends_left = 0;
    Events events;
    double exchange_began = 0;
    double exchange_ended = 0;
  };

  void upload_and_pack(Flight& flight);
  void download_packed(Flight& flight);
  void post(Flight& flight);
  void take_landed();
  void unpack_and_download(Flight& flight);
  void launch(DeviceStream& stream, Program const& program, std::uint64_t at, Flight const& flight);
  void upload(std::vector<ByteRange> const& ranges, Flight const& flight);
  void download(std::vector<ByteRange> const& ranges, Flight const& flight);
  Event began(DeviceStream& stream) { return parts_.observer ? stream.record() : nullptr; }
  void check_verdict(Flight const& flight) const;
  void report(Flight const& flight) const;
  double now() const;

  Parts parts_;
  std::unique_ptr<DeviceMemory> memory_;
  RingSpace space_;
  std::unique_ptr<DeviceStream> upload_, pack_, unpack_, download_;
  Event start_;
  std::chrono::steady_clock::time_point start_time_;
  std::deque<Flight> flights_;
  std::uint64_t rounds_ = 0;
  std::size_t messages_ = 0;
  std::vector<Landed> landed_;
  DeviceExchangeStats stats_;
};

}  // namespace reshard
