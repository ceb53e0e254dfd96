#include "core/device/host/emulated_device.hpp"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/error.hpp"

namespace reshard {

struct EmulatedStream::Mark {
  using Clock = std::chrono::steady_clock;
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  std::exception_ptr failure;
  Clock::time_point when;

  void reach(std::exception_ptr because) {
    std::lock_guard const lock(mutex);
    reached = true;
    failure = std::move(because);
    when = Clock::now();
    changed.notify_all();
  }
};

namespace {

// Fresh device memory holds whatever was there; a pattern shows who reads it.
constexpr int fresh_pattern = 0xa5;
constexpr std::align_val_t alignment{256};
// The interval at which a stream checks whether it is being destroyed.
constexpr std::chrono::milliseconds look_interval{20};

class EmulatedEvent final : public DeviceEvent {
 public:
  explicit EmulatedEvent(std::shared_ptr<EmulatedStream::Mark> mark) : mark_(std::move(mark)) {}

  bool reached() override {
    std::lock_guard const lock(mark_->mutex);
    if (mark_->failure) std::rethrow_exception(mark_->failure);
    return mark_->reached;
  }

  double seconds_since(DeviceEvent& earlier) override {
    return std::chrono::duration<double>(mark_->when -
                                         static_cast<EmulatedEvent&>(earlier).mark_->when)
        .count();
  }

  std::shared_ptr<EmulatedStream::Mark> const& mark() const { return mark_; }

 private:
  std::shared_ptr<EmulatedStream::Mark> mark_;
};

class EmulatedMemory final : public DeviceMemory {
 public:
  explicit EmulatedMemory(std::uint64_t bytes) : bytes_(bytes) {
    // A multiple of the alignment: kernels read complete aligned words.
    std::size_t const whole = (bytes / 256 + 1) * 256;
    data_ = static_cast<std::byte*>(::operator new(whole, alignment));
    std::memset(data_, fresh_pattern, whole);
  }
  ~EmulatedMemory() override { ::operator delete(data_, alignment); }
  EmulatedMemory(EmulatedMemory const&) = delete;
  EmulatedMemory& operator=(EmulatedMemory const&) = delete;
  std::byte* data() override { return data_; }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_;
};

/// Host memory is as fast for an emulated device as it is.
class EmulatedPin final : public DeviceMemory {
 public:
  EmulatedPin(std::byte* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data() override { return data_; }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  std::uint64_t bytes_;
};

class EmulatedDevice final : public Device {
 public:
  std::string name() const override { return "emulated device"; }
  std::string id() const override { return fmt::format("emulated-{}", ::getpid()); }
  std::uint64_t free_bytes() const override {
    return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
           static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  std::unique_ptr<DeviceMemory> allocate(std::uint64_t bytes) override {
    return std::make_unique<EmulatedMemory>(bytes);
  }
  std::unique_ptr<DeviceMemory> pin(std::byte* memory, std::uint64_t bytes) override {
    return std::make_unique<EmulatedPin>(memory, bytes);
  }
  std::unique_ptr<DeviceStream> new_stream() override { return std::make_unique<EmulatedStream>(); }
};

}  // namespace

EmulatedStream::EmulatedStream() : thread_([this] { work_off(); }) {}

EmulatedStream::~EmulatedStream() {
  std::lock_guard const lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

bool EmulatedStream::stopping() const {
  std::lock_guard const lock(mutex_);
  return stop_;
}

void EmulatedStream::work_off() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      work();
    } catch (...) {
      std::lock_guard const lock(mutex_);
      failure_ = std::current_exception();
    }
  }
}

void EmulatedStream::run(std::function<void()> work) {
  std::lock_guard const lock(mutex_);
  queue_.emplace_back([this, work = std::move(work)] {
    std::exception_ptr failed;
    {
      std::lock_guard const inner(mutex_);
      failed = failure_;
    }
    if (!failed) work();
  });
  changed_.notify_all();
}

void EmulatedStream::upload(std::byte* to_device, std::byte const* from_host, std::uint64_t bytes) {
  copy(to_device, from_host, bytes);
}
void EmulatedStream::download(std::byte* to_host, std::byte const* from_device,
                              std::uint64_t bytes) {
  copy(to_host, from_device, bytes);
}

void EmulatedStream::copy(std::byte* to, std::byte const* from, std::uint64_t bytes) {
  run([=] { std::memcpy(to, from, bytes); });
}

void EmulatedStream::fill_zero(std::byte* at, std::uint64_t bytes) {
  run([=] { std::memset(at, 0, bytes); });
}

void EmulatedStream::launch(Launch const& launch, LaunchPlaces const& places) {
  run([=] { run_on_host(launch, places); });
}

std::unique_ptr<DeviceEvent> EmulatedStream::record() {
  auto mark = std::make_shared<Mark>();
  std::lock_guard const lock(mutex_);
  queue_.emplace_back([this, mark] {
    std::exception_ptr failed;
    {
      std::lock_guard const inner(mutex_);
      failed = failure_;
    }
    mark->reach(failed);
  });
  changed_.notify_all();
  return std::make_unique<EmulatedEvent>(std::move(mark));
}

void EmulatedStream::wait(DeviceEvent& event) {
  run([this, mark = static_cast<EmulatedEvent&>(event).mark()] {
    std::unique_lock lock(mark->mutex);
    while (!mark->changed.wait_for(lock, look_interval, [&] { return mark->reached; }))
      if (stopping()) return;
    if (mark->failure) std::rethrow_exception(mark->failure);
  });
}

std::unique_ptr<Device> make_emulated_device() { return std::make_unique<EmulatedDevice>(); }

}  // namespace reshard
