#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "core/device/device.hpp"

namespace reshard {

/// A stream of make_emulated_device(): a thread with a queue. After work has thrown, the rest is
/// dropped and every event rethrows the exception.
class EmulatedStream final : public DeviceStream {
 public:
  EmulatedStream();
  /// Drops work that has not begun.
  ~EmulatedStream() override;
  EmulatedStream(EmulatedStream const&) = delete;
  EmulatedStream& operator=(EmulatedStream const&) = delete;

  void upload(std::byte* to_device, std::byte const* from_host, std::uint64_t bytes) override;
  void download(std::byte* to_host, std::byte const* from_device, std::uint64_t bytes) override;
  void copy(std::byte* to, std::byte const* from, std::uint64_t bytes) override;
  void fill_zero(std::byte* at, std::uint64_t bytes) override;
  void launch(Launch const& launch, LaunchPlaces const& places) override;
  std::unique_ptr<DeviceEvent> record() override;
  void wait(DeviceEvent& event) override;
  void* handle() override { return nullptr; }

  /// Puts any work into the stream. Work that waits for other streams should poll stopping()
  /// meanwhile.
  void run(std::function<void()> work);
  /// Whether the stream is being destroyed.
  bool stopping() const;

  /// The shared state of an event and the streams that wait for it.
  struct Mark;

 private:
  void work_off();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::jthread thread_;  // last member: the thread uses the others
};

}  // namespace reshard
