#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/device/device.hpp"
#include "core/transport/comm.hpp"
#include "core/transport/transport.hpp"
#include "pipeline/run/path/path_choice.hpp"
#include "stages/stream/stream.hpp"

namespace reshard {

/// The devices of every rank's host, in rank order. Collective.
std::vector<RankDevices> find_devices(Comm const& comm);

/// The device of this rank and the way its messages are sent, opened for a job.
class GpuPath {
 public:
  /// Collective. Pre: choice.device is cuda or emulated. Error: resources when a device or NCCL
  /// cannot be had or ranks cannot use it together.
  GpuPath(PathChoice const& choice, int device_number, Comm const& comm, double timeout_seconds);

  /// An Error of kind resources when the device has not that much memory left.
  void expect_memory(std::uint64_t bytes) const;
  DeviceSetup setup(std::uint64_t memory_bytes);
  std::string device_name() const { return device_->name(); }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<Transport> transport_;  // last: it uses the stream
};

}  // namespace reshard
