#pragma once

#include <memory>
#include <string_view>

#include "core/transport/mpi_transport.hpp"
#include "core/transport/nccl/nccl_transport.hpp"
#include "stages/stream/stream.hpp"
#include "tests/support/fake_nccl.hpp"

namespace reshard {

/// The ways a stream can take: through host memory, or through an emulated device with messages
/// over MPI or over the stand-in for NCCL.
enum class StreamPath { host, host_with_threads, device_with_mpi, device_with_nccl };

inline char const* name(StreamPath path) {
  return path == StreamPath::host                ? "host"
         : path == StreamPath::host_with_threads ? "host_with_threads"
         : path == StreamPath::device_with_mpi   ? "device_with_mpi"
                                                 : "device_with_nccl";
}

/// The device and the transport of a path; lives as long as the streams.
class PathParts {
 public:
  explicit PathParts(StreamPath path) : path_(path) {}

  /// The options, along the path. Collective when they are for an exchange.
  StreamOptions on_path(StreamOptions options) {
    if (path_ == StreamPath::host) return options;
    if (path_ == StreamPath::host_with_threads) {
      options.threads = 4;
      return options;
    }
    if (!device_) device_ = make_emulated_device();
    if (options.exchanging && !transport_) connect();
    options.on_device =
        DeviceSetup{device_.get(), options.memory_bytes, {transport_.get(), stream_.get()}};
    return options;
  }

 private:
  void connect() {
    if (path_ == StreamPath::device_with_mpi) {
      transport_ = std::make_unique<MpiTransport>(comm_);
      return;
    }
    NcclRankFacts facts;
    facts.host = "here";
    facts.host_identity = "here";
    facts.device_id = device_->id();
    facts.device_name = device_->name();
    facts.nccl_version = 22809;
    stream_ = device_->new_stream();
    transport_ = make_nccl_transport(comm_, std::make_shared<FakeNccl>(), facts, stream_.get(), 60);
  }

  StreamPath path_;
  Comm comm_ = Comm::world();
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace reshard
