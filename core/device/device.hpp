#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device/program.hpp"

namespace reshard {

/// A mark in a stream: reached when all earlier work of the stream is done.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// Whether it is reached. Throws errors of the device (kind internal, or resources if the device
  /// is lost).
  virtual bool reached() = 0;
  /// Seconds from `earlier` to this one. Pre: both are reached, of one device.
  virtual double seconds_since(DeviceEvent& earlier) = 0;
};

/// A queue of work of one device: work in one stream is sequential, work in two streams concurrent.
/// No call waits for the work. Memory that a call names must stay until the work is done.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual void upload(std::byte* to_device, std::byte const* from_host, std::uint64_t bytes) = 0;
  virtual void download(std::byte* to_host, std::byte const* from_device, std::uint64_t bytes) = 0;
  /// Copies within the device's memory. Pre: the two ranges do not overlap.
  virtual void copy(std::byte* to, std::byte const* from, std::uint64_t bytes) = 0;
  virtual void fill_zero(std::byte* at, std::uint64_t bytes) = 0;
  /// `places` are addresses of the device.
  virtual void launch(Launch const& launch, LaunchPlaces const& places) = 0;
  virtual std::unique_ptr<DeviceEvent> record() = 0;
  /// Later work of this stream begins after `event`, which another stream of the device recorded.
  virtual void wait(DeviceEvent& event) = 0;
  /// The system's own handle (cudaStream_t); nullptr for an emulated device.
  virtual void* handle() = 0;
};

/// Memory of a device, or host memory that it can reach fast; freed with the object.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data() = 0;
  virtual std::uint64_t bytes() const = 0;
};

/// A device that computes on memory of its own. Used by one thread at a time; its streams as well.
class Device {
 public:
  virtual ~Device() = default;
  /// Human-readable: "NVIDIA H200, 139.8 GiB".
  virtual std::string name() const = 0;
  /// Identifies a device among those of one host: the GPU's UUID.
  virtual std::string id() const = 0;
  /// Memory that is free now, in bytes.
  virtual std::uint64_t free_bytes() const = 0;
  /// Allocates memory at a multiple of 256. A refusal is an Error of kind resources.
  virtual std::unique_ptr<DeviceMemory> allocate(std::uint64_t bytes) = 0;
  /// Makes [memory, +bytes) of the host fast to copy from and to while the object lives. Pre: both
  /// are multiples of the page size.
  virtual std::unique_ptr<DeviceMemory> pin(std::byte* memory, std::uint64_t bytes) = 0;
  virtual std::unique_ptr<DeviceStream> new_stream() = 0;
};

/// The CUDA support of this machine and this build.
struct CudaOffer {
  bool built = false;                 ///< the program was built with CUDA
  int devices = 0;                    ///< usable ones
  std::vector<std::string> ids = {};  ///< Device::id() of each
  std::string
      why_none;  ///< a clause that ends a sentence, if devices is 0: "the driver is missing"
  int driver_version = 0;   ///< in CUDA's encoding: 13000 for 13.0; 0 without a driver
  int runtime_version = 0;  ///< of the build
};

/// Never fails: a machine without a driver has no devices.
CudaOffer cuda_offer();

/// Device `number` of cuda_offer().devices. Error: resources if it cannot be used.
std::unique_ptr<Device> open_cuda_device(int number);

/// An emulated device: streams are threads of the host, memory is host memory filled with a
/// pattern, kernels run by run_on_host(). The order of work, and the lack of one, is that of a GPU.
std::unique_ptr<Device> make_emulated_device();

/// A named range of time in NVIDIA's profilers (NVTX); without effect in a build without CUDA.
class ProfilerRange {
 public:
  explicit ProfilerRange(char const* name);
  ~ProfilerRange();
  ProfilerRange(ProfilerRange const&) = delete;
  ProfilerRange& operator=(ProfilerRange const&) = delete;
};

}  // namespace reshard
