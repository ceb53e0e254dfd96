#pragma once

#include <chrono>
#include <cstring>
#include <thread>

#include "core/device/device.hpp"
#include "tests/core/transport/transport_site.hpp"

namespace reshard {

/// A transport of device memory on a stream of its own.
class DeviceSite : public TransportSite {
 public:
  explicit DeviceSite(std::unique_ptr<Device> device)
      : device_(std::move(device)),
        copies_(device_->new_stream()),
        stream_(device_->new_stream()) {}

  Transport& transport() override { return *transport_; }

  std::byte* allocate(std::uint64_t bytes) override {
    memory_.push_back(device_->allocate(bytes));
    return memory_.back()->data();
  }
  void write(std::byte* to, std::span<std::byte const> bytes) override {
    copies_->upload(to, bytes.data(), bytes.size());
    finish_copies();
  }
  std::vector<std::byte> read(std::byte* from, std::uint64_t bytes) override {
    std::vector<std::byte> result(bytes);
    copies_->download(result.data(), from, bytes);
    finish_copies();
    return result;
  }

 protected:
  void finish_copies() {
    auto const event = copies_->record();
    while (!event->reached()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::unique_ptr<DeviceStream> copies_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<Transport> transport_;  // last: what it does uses the others
};

}  // namespace reshard
