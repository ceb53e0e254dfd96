#include "core/device/copy_program.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/device/copy_choice.hpp"
#include "core/device/kernels/copy_host.hpp"
#include "core/device/kernels/copy_tiles.hpp"
#include "core/device/kernels/fast_division.hpp"
#include "core/device/kernels/host_runs.hpp"
#include "core/device/strided_copy.hpp"
#include "tests/support/copy_cases.hpp"

namespace reshard {
namespace {

using test::CopyCase;
using Bytes = std::vector<std::byte>;
using Kernel = std::pair<CopyVariant, unsigned>;

std::set<Kernel> const all_kernels = {
    {CopyVariant::words, 1},   {CopyVariant::words, 2},        {CopyVariant::words, 4},
    {CopyVariant::words, 8},   {CopyVariant::words, 16},       {CopyVariant::fours, 1},
    {CopyVariant::fours, 2},   {CopyVariant::fours, 4},        {CopyVariant::tiles, 1},
    {CopyVariant::tiles, 2},   {CopyVariant::tiles, 4},        {CopyVariant::tiles, 8},
    {CopyVariant::tiles, 16},  {CopyVariant::shifted, 1},      {CopyVariant::shifted, 2},
    {CopyVariant::shifted, 4}, {CopyVariant::packed_tiles, 1}, {CopyVariant::packed_tiles, 2}};

Kernel kernel_of(Launch const& launch) {
  return {static_cast<CopyVariant>(launch.variant), launch.width};
}

Program program_of(CopyCase const& copies) {
  Program program;
  add_copies(program, copies.requests());
  return program;
}

void run(Program const& program, std::byte const* from, std::byte* to) {
  for (Launch const& launch : program.launches)
    run_copy_on_host(launch, {program.bytes.data(), from, to});
}

constexpr std::size_t page = 4096;

/// Memory between two pages that nobody may touch, right behind the first or right before the
/// second: what reads too far stops the test.
class FencedMemory {
 public:
  FencedMemory(std::vector<std::byte> const& bytes, bool at_end)
      : mapped_((bytes.size() / page + 3) * page) {
    void* const all = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    all_ = static_cast<std::byte*>(all);
    mprotect(all_ + page, mapped_ - 2 * page, PROT_READ | PROT_WRITE);
    data_ = at_end ? all_ + mapped_ - page - bytes.size() : all_ + page;
    std::copy(bytes.begin(), bytes.end(), data_);
  }
  ~FencedMemory() { munmap(all_, mapped_); }
  FencedMemory(FencedMemory const&) = delete;
  FencedMemory& operator=(FencedMemory const&) = delete;
  std::byte const* data() const { return data_; }

 private:
  std::size_t mapped_;
  std::byte* all_ = nullptr;
  std::byte* data_ = nullptr;
};

/// Runs a case on poisoned memory and compares every byte of the target, written or not. Returns
/// the kernels that took part.
std::vector<Kernel> expect_right(CopyCase const& copies, std::uint64_t seed, std::byte poison) {
  FencedMemory const source(test::random_memory(copies.from_bytes, seed), seed % 3 != 0);
  Bytes expected(copies.to_bytes, poison);
  Bytes found = expected;
  test::copy_byte_by_byte(copies, source.data(), expected.data());
  Program const program = program_of(copies);
  run(program, source.data(), found.data());
  EXPECT_EQ(test::first_difference(found.data(), expected.data(), expected.size()),
            expected.size());
  std::vector<Kernel> kernels;
  for (Launch const& launch : program.launches) kernels.push_back(kernel_of(launch));
  return kernels;
}

TEST(CopyProgram, AgreesWithCopyingByteByByte) {
  std::map<Kernel, int> hits;
  std::size_t copies = 0;
  for (std::uint64_t seed = 1; seed <= 6000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CopyCase const one = test::random_copy_case(seed);
    copies += one.copies.size();
    for (Kernel const& kernel :
         expect_right(one, seed, seed % 2 == 0 ? std::byte{0xA7} : std::byte{0x58}))
      ++hits[kernel];
  }
  RecordProperty("copies", static_cast<int>(copies));
  for (auto const& [variant, width] : all_kernels)
    EXPECT_GE((hits[{variant, width}]), 20)
        << "variant " << static_cast<int>(variant) << " of " << width << " bytes";
  EXPECT_EQ(hits.size(), all_kernels.size());
}

TEST(CopyProgram, AgreesWithCopyStrided) {
  for (std::uint64_t seed = 10001; seed <= 10600 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CopyCase const copies = test::random_copy_case(seed);
    Bytes const source = test::random_memory(copies.from_bytes, seed);
    Bytes expected(copies.to_bytes, std::byte{0x33});
    Bytes found = expected;
    for (test::OwnedCopy const& copy : copies.copies)
      copy_strided(source.data() + copy.from, expected.data() + copy.to, copy.run_bytes, copy.dims);
    run(program_of(copies), source.data(), found.data());
    EXPECT_EQ(test::first_difference(found.data(), expected.data(), expected.size()),
              expected.size());
  }
}

TEST(CopyProgram, CopiesShortRunsFromAnyByteToAnyByte) {
  for (std::uint64_t run_bytes = 1; run_bytes <= 80 && !testing::Test::HasFailure(); ++run_bytes) {
    SCOPED_TRACE(testing::Message() << "runs of " << run_bytes << " bytes");
    expect_right(test::all_alignments(run_bytes), run_bytes, std::byte{0xC3});
  }
}

TEST(CopyProgram, CopiesLongRunsFromAnyByteToAnyByte) {
  for (std::uint64_t from = 0; from < 16; ++from)
    for (std::uint64_t to = 0; to < 16; ++to) {
      SCOPED_TRACE(testing::Message() << "from byte " << from << " to byte " << to);
      std::uint64_t const run_bytes =
          (from + to) % 5 == 0 ? (1U << 20U) + 3 : 4000 + 257 * from + 13 * to;
      expect_right(test::one_run(from, to, run_bytes), from, std::byte{0x3C});
    }
}

TEST(CopyProgram, WorksWithinOneMemory) {
  for (std::uint64_t seed = 1; seed <= 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CopyCase copies = test::random_copy_case(seed, 5000);
    for (test::OwnedCopy& copy : copies.copies)
      copy.to += copies.from_bytes;  // words at the seam belong to both sides
    Bytes expected = test::random_memory(copies.from_bytes + copies.to_bytes, seed);
    Bytes found = expected;
    test::copy_byte_by_byte(copies, expected.data(), expected.data());
    run(program_of(copies), found.data(), found.data());
    EXPECT_EQ(test::first_difference(found.data(), expected.data(), expected.size()),
              expected.size());
  }
}

TEST(CopyProgram, NothingNeedsNoLaunch) {
  ByteDim const none{0, 8, 8};
  ByteDim const some{3, 8, 8};
  std::vector<CopyRequest> const nothing{
      {0, 0, 0, {}}, {0, 0, 0, {&some, 1}}, {0, 0, 8, {&none, 1}}};
  Program program;
  add_copies(program, nothing);
  add_copies(program, {});
  EXPECT_TRUE(program.launches.empty());
  EXPECT_TRUE(program.bytes.empty());
  EXPECT_EQ(bytes_of(nothing), 0U);
}

TEST(CopyProgram, CountsItsBytes) {
  std::vector<ByteDim> const dims{{2, 100, 8}, {4, 10, 2}};
  std::vector<CopyRequest> const copies{{0, 0, 16, dims}, {0, 512, 5, {}}};
  EXPECT_EQ(bytes_of(copies), 133U);
}

TEST(CopyProgram, IsAppendedToWhatAProgramHas) {
  CopyCase const copies = test::random_copy_case(77);
  Bytes const source = test::random_memory(copies.from_bytes, 77);
  Bytes expected(copies.to_bytes, std::byte{0x11});
  Bytes found = expected;
  test::copy_byte_by_byte(copies, source.data(), expected.data());
  Program program;
  program.bytes.resize(5, std::byte{0x99});
  std::vector<CopyRequest> const requests = copies.requests();
  for (CopyRequest const& request : requests) add_copies(program, {&request, 1});
  for (Launch const& launch : program.launches) EXPECT_EQ(launch.at % 16, 0U);
  EXPECT_EQ(std::count(program.bytes.begin(), program.bytes.begin() + 5, std::byte{0x99}), 5);
  run(program, source.data(), found.data());
  EXPECT_EQ(found, expected);
}

TEST(CopyProgram, ThousandsOfSmallCopiesAreFewLaunches) {
  CopyCase copies;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    copies.copies.push_back({copies.from_bytes, copies.to_bytes, 1024 + 16 * (i % 7), {}});
    copies.from_bytes += 1200;
    copies.to_bytes += 1024 + 16 * (i % 7);
  }
  Program const program = program_of(copies);
  ASSERT_EQ(program.launches.size(), 1U);
  EXPECT_EQ(kernel_of(program.launches[0]), (Kernel{CopyVariant::words, 16}));
  EXPECT_LT(program.bytes.size(), 5000U * 120);
  expect_right(copies, 1, std::byte{0x44});
}

/// The kernels that a copy of one request is given, in any order.
std::set<Kernel> kernels_of(std::uint64_t from, std::uint64_t to, std::uint64_t run_bytes,
                            std::vector<ByteDim> const& dims) {
  std::set<Kernel> kernels;
  for (ChosenCopy const& chosen : choose_kernels({from, to, run_bytes, dims}))
    kernels.insert({chosen.variant, chosen.width});
  return kernels;
}

TEST(CopyChoice, TakesTheWidestElementThatAllAddressesAllow) {
  using Kernels = std::set<Kernel>;
  EXPECT_EQ(kernels_of(64, 32, 8192, {{10, 16384, 8192}}), (Kernels{{CopyVariant::words, 16}}));
  EXPECT_EQ(kernels_of(64, 32, 8192, {{10, 16392, 8192}}), (Kernels{{CopyVariant::words, 8}}));
  EXPECT_EQ(kernels_of(6, 0, 8192, {{10, 16384, 8192}}), (Kernels{{CopyVariant::shifted, 2}}));
  EXPECT_EQ(kernels_of(4, 0, 8192, {}), (Kernels{{CopyVariant::shifted, 4}}));
  EXPECT_EQ(kernels_of(4, 1, 8192, {}), (Kernels{{CopyVariant::shifted, 1}}));
}

TEST(CopyChoice, TakesEveryOtherElementByFours) {
  using Kernels = std::set<Kernel>;
  EXPECT_EQ(kernels_of(2, 0, 2, {{4096, 4, 2}}), (Kernels{{CopyVariant::fours, 2}}));
  EXPECT_EQ(kernels_of(2, 0, 2, {{4099, 4, 2}}),
            (Kernels{{CopyVariant::fours, 2}, {CopyVariant::words, 2}}));
  EXPECT_EQ(kernels_of(0, 0, 2, {{2, 2, 128}, {64, 4, 2}}), (Kernels{{CopyVariant::fours, 2}}));
}

TEST(CopyChoice, TakesTransposesByTiles) {
  using Kernels = std::set<Kernel>;
  EXPECT_EQ(kernels_of(0, 0, 4, {{512, 2048, 4}, {512, 4, 2048}}),
            (Kernels{{CopyVariant::tiles, 4}}));
  EXPECT_EQ(kernels_of(0, 0, 2, {{512, 1024, 2}, {512, 2, 1024}}),
            (Kernels{{CopyVariant::packed_tiles, 2}}));
  EXPECT_EQ(kernels_of(2, 0, 2, {{512, 1024, 2}, {512, 2, 1024}}),
            (Kernels{{CopyVariant::tiles, 2}}));
  EXPECT_EQ(kernels_of(0, 0, 2, {{512, 1022, 2}, {511, 2, 1024}}),
            (Kernels{{CopyVariant::tiles, 2}}));
}

TEST(CopyChoice, TilesFitTheSharedMemoryOfABlock) {
  for (std::int64_t width = 1; width <= 16; width *= 2)
    for (std::uint64_t lines = 4; lines <= 8192; lines *= 2)
      for (std::uint64_t columns = 4; columns <= 8192; columns *= 2) {
        auto const line = static_cast<std::int64_t>(lines) * width;
        auto const column = static_cast<std::int64_t>(columns) * width;
        std::vector<ByteDim> const dims{{columns, line, width}, {lines, width, column}};
        for (ChosenCopy const& chosen :
             choose_kernels({0, 0, static_cast<std::uint64_t>(width), dims})) {
          if (chosen.variant != CopyVariant::tiles && chosen.variant != CopyVariant::packed_tiles)
            continue;
          unsigned const pack = chosen.variant == CopyVariant::packed_tiles ? 4 / chosen.width : 1;
          std::uint64_t const row_words =
              (1U << chosen.column_bits) / pack + tile_gap(chosen.width * pack);
          EXPECT_LE((row_words << chosen.line_bits) * chosen.width * pack, tile_memory)
              << lines << " x " << columns << " of " << width;
          EXPECT_LE((1U << chosen.line_bits) / pack, threads_per_block);
          EXPECT_LE((1U << chosen.column_bits) / pack, threads_per_block);
          EXPECT_GE(1U << (chosen.line_bits + chosen.column_bits),
                    std::min<std::uint64_t>(lines * columns, 256))
              << lines << " x " << columns;
        }
      }
}

TEST(CopyChoice, CutsWhatThirtyTwoBitsCannotCount) {
  std::uint64_t const bytes = std::uint64_t{40} << 30U;
  std::uint64_t moved = 0;
  for (ChosenCopy const& chosen : choose_kernels({0, 0, 1, std::vector<ByteDim>{{bytes, 2, 1}}})) {
    std::uint64_t items = chosen.variant == CopyVariant::fours ? 4 : 1;
    for (ByteDim const& level : chosen.levels) items *= level.count;
    EXPECT_LT(items, std::uint64_t{1} << 31U);
    moved += items;
  }
  EXPECT_EQ(moved, bytes);
}

/// Memory that is there when it is touched.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Reserved() { munmap(data_, bytes_); }
  Reserved(Reserved const&) = delete;
  Reserved& operator=(Reserved const&) = delete;
  std::byte* data() { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

/// A byte of a copy: of run `run` byte `byte`.
struct Probe {
  std::uint64_t run = 0;
  std::uint64_t byte = 0;
};

/// Those at both ends, and at and before every place where halving again and again would cut the
/// copy.
std::vector<Probe> probes_of(CopyRequest const& request) {
  std::vector<Probe> probes;
  std::uint64_t const runs = copied_bytes(1, request.dims);
  for (std::uint64_t part = 0; part <= 16; ++part)
    for (std::uint64_t back = 0; back < 600; back += 7) {
      if (std::uint64_t const run = runs * part / 16 + 300 - back; run < runs)
        probes.push_back({run, (back * 5) % request.run_bytes});
      if (std::uint64_t const byte = request.run_bytes / 16 * part + 300 - back;
          byte < request.run_bytes)
        probes.push_back({runs / 2, byte});
    }
  probes.push_back({0, 0});
  probes.push_back({runs - 1, request.run_bytes - 1});
  return probes;
}

/// Blocks at the same places of a launch.
std::set<std::uint32_t> blocks_near_cuts(std::uint32_t blocks) {
  std::set<std::uint32_t> chosen;
  for (std::uint64_t part = 0; part <= 16; ++part)
    for (std::uint64_t back = 0; back < 7; ++back)
      if (std::uint64_t const block = std::uint64_t{blocks} * part / 16 + 3 - back; block < blocks)
        chosen.insert(static_cast<std::uint32_t>(block));
  return chosen;
}

/// Runs the blocks of a copy of many GiB that stand near its ends and cuts, and looks at bytes
/// there.
void expect_right_near_cuts(CopyRequest const& request, std::size_t from_bytes,
                            std::size_t to_bytes) {
  Reserved from(from_bytes);
  Reserved to(to_bytes);
  Program program;
  add_copies(program, {&request, 1});
  std::vector<Probe> const probes = probes_of(request);
  auto const places = [&](Probe const& probe) {
    return place_of_run(probe.run, request.dims.data(), request.dims.size());
  };
  std::byte mark{1};
  for (Probe const& probe : probes) {
    mark = std::byte(static_cast<unsigned char>(static_cast<unsigned>(mark) % 251 + 1));
    from.data()[request.from + static_cast<std::uint64_t>(places(probe).from) + probe.byte] = mark;
  }
  for (Launch const& launch : program.launches)
    for (std::uint32_t const block : blocks_near_cuts(launch.blocks))
      run_copy_blocks_on_host(launch, {program.bytes.data(), from.data(), to.data()}, block,
                              block + 1);
  for (Probe const& probe : probes) {
    std::byte const expected =
        from.data()[request.from + static_cast<std::uint64_t>(places(probe).from) + probe.byte];
    ASSERT_NE(expected, std::byte{0});
    ASSERT_EQ(to.data()[request.to + static_cast<std::uint64_t>(places(probe).to) + probe.byte],
              expected)
        << "run " << probe.run << ", byte " << probe.byte;
  }
}

TEST(CopyProgram, CopiesManyGibibytes) {
  std::uint64_t const gib = std::uint64_t{1} << 30U;
  auto const far = static_cast<std::int64_t>(3 * gib);
  expect_right_near_cuts({0, 0, 5 * gib, {}}, 5 * gib, 5 * gib);
  expect_right_near_cuts({6, 1, 5 * gib + 77, {}}, 5 * gib + 96, 5 * gib + 96);
  expect_right_near_cuts({0, 0, 1, std::vector<ByteDim>{{4 * gib + 13, 2, 1}}}, 9 * gib, 5 * gib);
  expect_right_near_cuts({0, 0, 4096, std::vector<ByteDim>{{3, far, 4096}}}, 7 * gib, 3 * 4096);
  expect_right_near_cuts({7 * gib, 2, 64, std::vector<ByteDim>{{3, -far, 66}}}, 8 * gib, 4096);
}

TEST(FastDivision, AgreesWithDivision) {
  std::vector<std::uint32_t> numbers{0, 1, 2, 3, fast_division_limit - 1, fast_division_limit - 2};
  for (std::uint32_t bit = 2; bit < 31; ++bit)
    numbers.insert(numbers.end(), {(1U << bit) - 1, 1U << bit, (1U << bit) + 1});
  for (std::uint32_t i = 0; i < 2000; ++i) numbers.push_back(i * 2654435761U % fast_division_limit);
  for (std::uint32_t const divisor : numbers) {
    if (divisor == 0) continue;
    FastDivisor const fast = fast_divisor(divisor);
    for (std::uint32_t const number : numbers)
      ASSERT_EQ(divide(number, fast), number / divisor) << number << " / " << divisor;
    std::uint32_t const edge = (fast_division_limit - 1) / divisor * divisor;
    ASSERT_EQ(divide(edge, fast), edge / divisor);
    ASSERT_EQ(divide(edge - 1, fast), (edge - 1) / divisor);
  }
}

}  // namespace
}  // namespace reshard
