#include "tests/gpu/bench.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "tests/gpu/random_words.hpp"

namespace reshard::test {
namespace {

constexpr int warm_up_passes = 3;
constexpr std::uint64_t slack = 1U << 20U;

Passes passes_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

}  // namespace

PairOfPasses time_in_turn(DeviceStream& stream, int passes, std::function<void(int)> const& first,
                          std::function<void(int)> const& second) {
  using Marks = std::array<std::unique_ptr<DeviceEvent>, 3>;
  std::vector<Marks> marks;
  for (int p = 0; p < passes + warm_up_passes; ++p) {
    Marks pass;
    pass[0] = stream.record();
    first(p);
    pass[1] = stream.record();
    second(p);
    pass[2] = stream.record();
    if (p >= warm_up_passes) marks.push_back(std::move(pass));
  }
  finish(stream);
  std::vector<double> of_first;
  std::vector<double> of_second;
  for (Marks const& pass : marks) {
    of_first.push_back(pass[1]->seconds_since(*pass[0]));
    of_second.push_back(pass[2]->seconds_since(*pass[1]));
  }
  return {passes_of(of_first), passes_of(of_second)};
}

Slots::Slots(Testbed& testbed, BenchOptions const& options)
    : slot_bytes_(2 * options.payload + slack), seed_(options.seed) {
  from_ = testbed.device().allocate(count * slot_bytes_);
  to_ = testbed.device().allocate(count * slot_bytes_);
  fill_sources(testbed, all_bits);
}

void Slots::fill_sources(Testbed& testbed, std::uint64_t mask) {
  for (int s = 0; s < count; ++s)
    fill_random(testbed.stream(), from(s), slot_bytes_ / 8 * 8, seed_of(s), mask);
  finish(testbed.stream());
}

LoadedProgram::LoadedProgram(Testbed& testbed, Program const& program)
    : launches_(program.launches),
      memory_(testbed.device().allocate(std::max<std::uint64_t>(program.bytes.size(), 16))) {
  testbed.upload(memory_->data(), program.bytes);
}

void LoadedProgram::put(DeviceStream& stream, std::byte const* from, std::byte* to) const {
  for (Launch const& launch : launches_) stream.launch(launch, {memory_->data(), from, to});
}

std::string rate(std::uint64_t bytes, double seconds) {
  double const gigabytes = static_cast<double>(bytes) / 1e9 / std::max(seconds, 1e-12);
  return gigabytes >= 1000 ? fmt::format("{:.2f} TB/s", gigabytes / 1000)
                           : fmt::format("{:.1f} GB/s", gigabytes);
}

}  // namespace reshard::test
