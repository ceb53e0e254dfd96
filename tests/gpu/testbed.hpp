#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/device/device.hpp"

// What the checks and the benchmark share: a device, its streams, and memory. No test framework is
// needed.

namespace reshard::test {

/// A check that failed, as a sentence.
class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw CheckFailed(fmt::format(format, std::forward<Args>(args)...));
}

/// Waits until everything in the stream is done. A device that is stuck fails the check.
void finish(DeviceStream& stream);

/// A device with three streams.
class Testbed {
 public:
  static constexpr std::size_t stream_count = 3;

  explicit Testbed(std::unique_ptr<Device> device);
  Device& device() { return *device_; }
  DeviceStream& stream(std::size_t number = 0) { return *streams_[number % stream_count]; }
  /// A device that is not there: sizes should be small.
  bool emulated() { return stream().handle() == nullptr; }

  void upload(std::byte* to_device, std::vector<std::byte> const& bytes);
  std::vector<std::byte> download(std::byte const* from_device, std::uint64_t bytes);
  /// Puts a program's launches into stream 0, or, `spread`, one after the other into all streams;
  /// waits for them.
  void carry_out(Program const& program, std::byte const* from, std::byte* to, bool spread = false);

 private:
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<DeviceStream>> streams_;
  std::unique_ptr<DeviceMemory> program_memory_;
};

/// Host memory that the device can reach fast.
class PinnedBlock {
 public:
  PinnedBlock(Device& device, std::uint64_t bytes);
  ~PinnedBlock();
  PinnedBlock(PinnedBlock const&) = delete;
  PinnedBlock& operator=(PinnedBlock const&) = delete;
  std::byte* data() { return data_; }

 private:
  std::byte* data_;
  std::uint64_t bytes_;
  std::unique_ptr<DeviceMemory> pin_;
};

/// The device of this machine's GPU, or an emulated one. Without a GPU it ends the program with
/// exit code 77 after the reason.
std::unique_ptr<Device> device_or_skip(bool emulated);

/// A line of the final table: tests/gpu/run.sh collects them.
void print_row(std::string const& group, std::string const& name, std::string const& result,
               std::string const& verdict);

}  // namespace reshard::test
