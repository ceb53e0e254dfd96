// Upload, pack, download on three streams over a ring of slots in device memory, as a fraction of
// copies of the same bytes both ways at once.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "core/device/copy_program.hpp"
#include "core/device/strided_copy.hpp"
#include "tests/gpu/bench.hpp"
#include "tests/gpu/random_words.hpp"

namespace reshard::test {
namespace {

constexpr double bar = 0.90;
constexpr std::size_t ring_slots = 4;
constexpr std::size_t host_slots = 8;
constexpr std::uint64_t run_bytes = 4096;
constexpr std::uint64_t blocks = 4;  ///< of a slot, whose runs go in turn to the target

class Pipeline {
 public:
  Pipeline(Testbed& testbed, std::uint64_t slot_bytes, std::uint64_t rounds)
      : testbed_(testbed),
        slot_bytes_(slot_bytes),
        rounds_(rounds),
        in_(testbed.device(), host_slots * slot_bytes),
        out_(testbed.device(), host_slots * slot_bytes) {
    std::uint64_t const runs = slot_bytes / run_bytes / blocks;
    dims_ = {
        {runs, static_cast<std::int64_t>(run_bytes), static_cast<std::int64_t>(blocks * run_bytes)},
        {blocks, static_cast<std::int64_t>(runs * run_bytes),
         static_cast<std::int64_t>(run_bytes)}};
    std::vector<CopyRequest> const copies{{0, 0, run_bytes, dims_}};
    Program program;
    add_copies(program, copies);
    program_ = std::make_unique<LoadedProgram>(testbed, program);
    for (std::size_t s = 0; s < ring_slots; ++s) {
      from_.push_back(testbed.device().allocate(slot_bytes));
      to_.push_back(testbed.device().allocate(slot_bytes));
    }
    for (std::uint64_t i = 0; i < host_slots * slot_bytes / 8; ++i) {
      std::uint64_t const word = random_word(5, i);
      std::memcpy(in_.data() + 8 * i, &word, 8);
    }
  }

  std::uint64_t bytes_each_way() const { return rounds_ * slot_bytes_; }

  /// Seconds of all rounds; a slot is used again when its download is done.
  double with_pack() {
    std::array<std::unique_ptr<DeviceEvent>, ring_slots> packed;
    std::array<std::unique_ptr<DeviceEvent>, ring_slots> downloaded;
    return seconds_of([&](std::uint64_t round) {
      std::size_t const slot = round % ring_slots;
      if (packed[slot] != nullptr) up().wait(*packed[slot]);
      up().upload(from_[slot]->data(), host_in(round), slot_bytes_);
      auto const uploaded = up().record();
      middle().wait(*uploaded);
      if (downloaded[slot] != nullptr) middle().wait(*downloaded[slot]);
      program_->put(middle(), from_[slot]->data(), to_[slot]->data());
      packed[slot] = middle().record();
      down().wait(*packed[slot]);
      down().download(host_out(round), to_[slot]->data(), slot_bytes_);
      downloaded[slot] = down().record();
    });
  }

  /// The same bytes both ways at once, nothing that waits for anything.
  double copies_only() {
    return seconds_of([&](std::uint64_t round) {
      std::size_t const slot = round % ring_slots;
      up().upload(from_[slot]->data(), host_in(round), slot_bytes_);
      down().download(host_out(round), to_[slot]->data(), slot_bytes_);
    });
  }

  double one_way(bool upwards) {
    return seconds_of([&](std::uint64_t round) {
      std::size_t const slot = round % ring_slots;
      if (upwards)
        up().upload(from_[slot]->data(), host_in(round), slot_bytes_);
      else
        down().download(host_out(round), to_[slot]->data(), slot_bytes_);
    });
  }

  void check() {
    std::memset(out_.data(), 0, host_slots * slot_bytes_);
    with_pack();
    std::vector<std::byte> expected(slot_bytes_);
    for (std::uint64_t round = 0; round < std::min<std::uint64_t>(rounds_, host_slots); ++round) {
      copy_strided(host_in(round), expected.data(), run_bytes, dims_);
      expect(std::memcmp(expected.data(), host_out(round), slot_bytes_) == 0,
             "round {} of the pipeline has wrong bytes", round);
    }
  }

 private:
  DeviceStream& up() { return testbed_.stream(0); }
  DeviceStream& middle() { return testbed_.stream(1); }
  DeviceStream& down() { return testbed_.stream(2); }
  std::byte* host_in(std::uint64_t round) { return in_.data() + round % host_slots * slot_bytes_; }
  std::byte* host_out(std::uint64_t round) {
    return out_.data() + round % host_slots * slot_bytes_;
  }

  template <class Put>
  double seconds_of(Put const& put) {
    for (std::size_t s = 0; s < Testbed::stream_count; ++s) finish(testbed_.stream(s));
    auto const begin = std::chrono::steady_clock::now();
    for (std::uint64_t round = 0; round < rounds_; ++round) put(round);
    for (std::size_t s = 0; s < Testbed::stream_count; ++s) finish(testbed_.stream(s));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Testbed& testbed_;
  std::uint64_t slot_bytes_;
  std::uint64_t rounds_;
  std::vector<ByteDim> dims_;
  std::unique_ptr<LoadedProgram> program_;
  PinnedBlock in_;
  PinnedBlock out_;
  std::vector<std::unique_ptr<DeviceMemory>> from_;
  std::vector<std::unique_ptr<DeviceMemory>> to_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

void bench_pipeline(Testbed& testbed, BenchOptions const& options) {
  std::uint64_t const slot_bytes = std::min<std::uint64_t>(options.payload / 16, 64U << 20U);
  constexpr std::uint64_t rounds = 64;
  constexpr int repetitions = 5;
  Pipeline pipeline(testbed, slot_bytes, rounds);
  pipeline.check();
  pipeline.copies_only();
  std::vector<double> packed;
  std::vector<double> copies;
  std::vector<double> up;
  std::vector<double> down;
  for (int r = 0; r < repetitions; ++r) {
    copies.push_back(pipeline.copies_only());
    packed.push_back(pipeline.with_pack());
    up.push_back(pipeline.one_way(true));
    down.push_back(pipeline.one_way(false));
  }
  std::uint64_t const bytes = pipeline.bytes_each_way();
  double const fraction = median(copies) / median(packed);
  double const best = *std::min_element(copies.begin(), copies.end()) /
                      *std::min_element(packed.begin(), packed.end());
  print_row("bench", "pinned copies, up / down / both ways",
            fmt::format("{} / {} / {} each way", rate(bytes, median(up)), rate(bytes, median(down)),
                        rate(bytes, median(copies))),
            "-");
  print_row(
      "bench",
      fmt::format("upload, pack, download; {} slots of {} KiB", ring_slots, slot_bytes >> 10U),
      fmt::format("{:.2f} of the copies both ways (best {:.2f}); {} each way", fraction, best,
                  rate(bytes, median(packed))),
      testbed.emulated() ? "-"
      : fraction >= bar  ? fmt::format("reached {:.2f}", bar)
                         : fmt::format("BELOW {:.2f}", bar));
}

}  // namespace reshard::test
