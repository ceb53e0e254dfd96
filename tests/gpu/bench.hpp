#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/gpu/testbed.hpp"

namespace reshard::test {

struct BenchOptions {
  std::uint64_t payload = std::uint64_t{1} << 30U;  ///< bytes that one pass of a kernel moves
  int passes = 12;                                  ///< timed ones; before them some for warmth
  std::uint64_t seed = 1;
};

/// Seconds of the passes of one thing.
struct Passes {
  double least = 0;
  double median = 0;
};

/// Times two kinds of work in turn, so that both see the same machine: in pass p, first(p), then
/// second(p), both put into `stream`.
struct PairOfPasses {
  Passes first;
  Passes second;
};
PairOfPasses time_in_turn(DeviceStream& stream, int passes, std::function<void(int)> const& first,
                          std::function<void(int)> const& second);

/// Four sources of random bytes and four targets, used in turn: far more than a GPU caches.
class Slots {
 public:
  static constexpr int count = 4;
  Slots(Testbed& testbed, BenchOptions const& options);
  std::byte* from(int pass) {
    return from_->data() + static_cast<std::uint64_t>(pass % count) * slot_bytes_;
  }
  std::byte* to(int pass) {
    return to_->data() + static_cast<std::uint64_t>(pass % count) * slot_bytes_;
  }
  /// Of each: twice the payload and a bit.
  std::uint64_t bytes() const { return slot_bytes_; }
  /// Slot s holds the words of random_word(seed + s, …).
  std::uint64_t seed_of(int pass) const { return seed_ + static_cast<std::uint64_t>(pass % count); }
  void fill_sources(Testbed& testbed, std::uint64_t mask);

 private:
  std::uint64_t slot_bytes_;
  std::uint64_t seed_;
  std::unique_ptr<DeviceMemory> from_;
  std::unique_ptr<DeviceMemory> to_;
};

/// A program on the device.
class LoadedProgram {
 public:
  LoadedProgram(Testbed& testbed, Program const& program);
  void put(DeviceStream& stream, std::byte const* from, std::byte* to) const;

 private:
  std::vector<Launch> launches_;
  std::unique_ptr<DeviceMemory> memory_;
};

/// "1.93 TB/s" of bytes in seconds.
std::string rate(std::uint64_t bytes, double seconds);

void bench_copies(Testbed& testbed, Slots& slots, BenchOptions const& options);
void bench_values(Testbed& testbed, Slots& slots, BenchOptions const& options);
void bench_pipeline(Testbed& testbed, BenchOptions const& options);

}  // namespace reshard::test
