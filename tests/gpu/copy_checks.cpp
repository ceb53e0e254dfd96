// Random copies, by every kernel, against loops over bytes on the host.

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "core/device/kernels/copy_descriptors.hpp"
#include "core/device/strided_copy.hpp"
#include "tests/gpu/gpu_checks.hpp"
#include "tests/gpu/random_words.hpp"
#include "tests/support/copy_cases.hpp"

namespace reshard::test {
namespace {

constexpr std::byte poison{0xdb};
constexpr std::uint64_t guard_bytes = 256;

/// Memory on both sides that grows with the cases; the target has a guard on either side.
class CopyPlaces {
 public:
  explicit CopyPlaces(Testbed& testbed) : testbed_(testbed) {}

  void check(CopyCase const& one, std::uint64_t seed, bool spread) {
    Program program;
    add_copies(program, one.requests());
    count(program);
    std::vector<std::byte> const from = random_memory(one.from_bytes, seed);
    std::vector<std::byte> expected(one.to_bytes + 2 * guard_bytes, poison);
    testbed_.upload(room(from_, one.from_bytes), from);
    std::byte* const to = room(to_, expected.size());
    testbed_.upload(to, expected);
    copy_byte_by_byte(one, from.data(), expected.data() + guard_bytes);
    testbed_.carry_out(program, from_->data(), to + guard_bytes, spread);
    std::vector<std::byte> const found = testbed_.download(to, expected.size());
    std::size_t const differs = first_difference(expected.data(), found.data(), expected.size());
    expect(differs == expected.size(), "seed {}: byte {} of the target is {:02x}, expected {:02x}",
           seed, static_cast<std::int64_t>(differs) - static_cast<std::int64_t>(guard_bytes),
           static_cast<unsigned>(found[differs % found.size()]),
           static_cast<unsigned>(expected[differs % expected.size()]));
  }

  /// How many kernels have run, of all that there are.
  std::size_t kernels() const { return launches_.size(); }

 private:
  std::byte* room(std::unique_ptr<DeviceMemory>& memory, std::uint64_t bytes) {
    if (memory == nullptr || memory->bytes() < bytes) {
      memory.reset();
      memory = testbed_.device().allocate(2 * bytes + guard_bytes);
    }
    return memory->data();
  }

  void count(Program const& program) {
    for (Launch const& launch : program.launches)
      ++launches_[{static_cast<int>(launch.kind), launch.variant, launch.width}];
  }

  Testbed& testbed_;
  std::unique_ptr<DeviceMemory> from_;
  std::unique_ptr<DeviceMemory> to_;
  std::map<std::tuple<int, int, int>, std::uint64_t> launches_;
};

// words and tiles of 1 to 16 bytes, fours and shifted of 1 to 4, packed tiles of 1 and 2.
constexpr std::size_t all_kernels = 5 + 5 + 3 + 3 + 2;

std::string random_copies(Testbed& testbed, CheckOptions const& options) {
  CopyPlaces places(testbed);
  for (std::uint64_t seed = options.first_seed; seed < options.first_seed + options.cases; ++seed) {
    bool const large = !options.small && seed % 16 == 0;
    places.check(random_copy_case(seed, large ? 2'000'000 : 40'000), seed, seed % 3 == 0);
  }
  constexpr std::uint64_t enough_for_all = 500;
  expect(options.cases < enough_for_all || places.kernels() == all_kernels,
         "only {} of {} kernels were needed: the cases are too alike", places.kernels(),
         all_kernels);
  return fmt::format("{} cases from seed {}, {} of {} kernels", options.cases, options.first_seed,
                     places.kernels(), all_kernels);
}

std::string every_alignment(Testbed& testbed, CheckOptions const& options) {
  std::vector<std::uint64_t> runs{1,  2,   3,   7,   15,  16,  17,  31,   33,  63,
                                  64, 100, 129, 255, 256, 257, 511, 1025, 4099};
  if (options.small) runs = {1, 17, 129};
  if (!options.small && !testbed.emulated()) runs.push_back((std::uint64_t{1} << 16U) + 1);
  CopyPlaces places(testbed);
  for (std::uint64_t const run : runs) places.check(all_alignments(run), run, false);
  return fmt::format("{} run lengths at 16 x 16 places each", runs.size());
}

std::string million_byte_runs(Testbed& testbed, CheckOptions const& options) {
  if (options.small) return "left out: small";
  CopyPlaces places(testbed);
  std::uint64_t cases = 0;
  for (std::uint64_t const from : {0U, 1U, 2U, 4U, 8U, 13U})
    for (std::uint64_t const to : {0U, 3U, 6U, 12U, 16U})
      places.check(one_run(from, to, (std::uint64_t{1} << 20U) + from * to), ++cases, false);
  return fmt::format("{} cases", cases);
}

/// Copies whose places and lengths do not fit 32 bits. Compared where they are cut: the data can be
/// computed for any place.
std::string beyond_32_bits(Testbed& testbed, CheckOptions const& options) {
  if (testbed.emulated() || options.small) return "left out: needs a GPU";
  constexpr std::uint64_t GiB = std::uint64_t{1} << 30U;
  constexpr std::uint64_t rows = 5;
  constexpr std::uint64_t row_bytes = GiB + 96;
  constexpr std::uint64_t memory = rows * (row_bytes + 160) + 4096;
  if (testbed.device().free_bytes() < 2 * memory + GiB)
    return "left out: too little free memory of the GPU";
  auto const from = testbed.device().allocate(memory);
  auto const to = testbed.device().allocate(memory);
  fill_random(testbed.stream(), from->data(), memory / 8 * 8, 7);
  std::uint64_t windows = 0;
  for (std::uint64_t const shift : {0U, 6U}) {
    fill_random(testbed.stream(), to->data(), memory / 8 * 8, 8);
    std::vector<ByteDim> const dims{
        {rows, static_cast<std::int64_t>(row_bytes + 160), static_cast<std::int64_t>(row_bytes)}};
    std::vector<CopyRequest> const copies{{32 + shift, 16, row_bytes, dims}};
    Program program;
    add_copies(program, copies);
    testbed.carry_out(program, from->data(), to->data());
    constexpr std::uint64_t window = 4096;
    for (std::uint64_t at = 0; at < rows * row_bytes; at += GiB / 64 + 4099) {
      std::uint64_t const bytes = std::min(window, rows * row_bytes - at);
      std::vector<std::byte> const found = testbed.download(to->data() + 16 + at, bytes);
      for (std::uint64_t i = 0; i < bytes; ++i) {
        std::uint64_t const row = (at + i) / row_bytes;
        std::uint64_t const source = 32 + shift + row * (row_bytes + 160) + (at + i) % row_bytes;
        expect(found[i] == random_byte(7, source),
               "byte {} of a copy of {} bytes is wrong (shift {})", at + i, rows * row_bytes,
               shift);
      }
      ++windows;
    }
    std::vector<std::byte> const before = testbed.download(to->data(), 16);
    for (std::uint64_t i = 0; i < 16; ++i)
      expect(before[i] == random_byte(8, i), "byte {} before the target was written", i);
  }
  return fmt::format("2 copies of {} bytes, {} places compared", rows * row_bytes, windows);
}

}  // namespace

std::vector<Check> copy_checks() {
  return {{"copies: random", random_copies},
          {"copies: every alignment", every_alignment},
          {"copies: runs of 1 MiB", million_byte_runs},
          {"copies: beyond 32 bits", beyond_32_bits}};
}

}  // namespace reshard::test
