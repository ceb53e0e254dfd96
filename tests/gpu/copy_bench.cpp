// Pack and unpack as a fraction of a plain copy of as many bytes on the same device, taken in turn
// with it.

#include <algorithm>
#include <random>

#include "core/device/copy_program.hpp"
#include "tests/gpu/bench.hpp"
#include "tests/gpu/random_words.hpp"

namespace reshard::test {
namespace {

constexpr double bar_for_long_runs = 0.90;
constexpr double bar_for_64_bytes = 0.75;

struct BenchCopy {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t run_bytes = 0;
  std::vector<ByteDim> dims;
};

struct CopyBench {
  std::string name;
  std::vector<BenchCopy> copies;
  double bar = 0;  ///< the fraction to reach; 0: none is asked for
};

std::int64_t stride(std::uint64_t bytes) { return static_cast<std::int64_t>(bytes); }

/// Every second run of the source to one block: half of a matrix's columns.
BenchCopy pack(std::uint64_t payload, std::uint64_t run_bytes, std::uint64_t from) {
  std::uint64_t const runs = payload / run_bytes;
  return {from, 0, run_bytes, {{runs, stride(2 * run_bytes), stride(run_bytes)}}};
}

BenchCopy unpack(std::uint64_t payload, std::uint64_t run_bytes, std::uint64_t to) {
  std::uint64_t const runs = payload / run_bytes;
  return {0, to, run_bytes, {{runs, stride(run_bytes), stride(2 * run_bytes)}}};
}

std::string size_text(std::uint64_t bytes) {
  return bytes % 1024 == 0 ? fmt::format("{} KiB", bytes / 1024) : fmt::format("{} B", bytes);
}

void add_aligned(std::vector<CopyBench>& benches, std::uint64_t payload) {
  for (std::uint64_t const run : {32U, 64U, 128U, 256U, 512U, 4096U, 65536U}) {
    double const bar = run >= 128 ? bar_for_long_runs : run == 64 ? bar_for_64_bytes : 0;
    benches.push_back(
        {fmt::format("pack, runs of {}", size_text(run)), {pack(payload, run, 0)}, bar});
    benches.push_back(
        {fmt::format("unpack, runs of {}", size_text(run)), {unpack(payload, run, 0)}, bar});
  }
}

/// Runs whose places in source and target differ modulo 16 by ever other numbers, all multiples of
/// `unit`.
void add_misaligned(std::vector<CopyBench>& benches, std::uint64_t payload) {
  for (std::uint64_t const unit : {2U, 4U, 1U})
    for (std::uint64_t const run : {32U, 64U, 128U, 512U, 4096U, 65536U}) {
      if (unit == 1 && run != 512 && run != 65536) continue;
      std::string const name = fmt::format("{}-byte alignment, runs of {}", unit, run + unit);
      benches.push_back({"pack, " + name, {pack(payload, run + unit, unit)}});
      if (unit > 1) benches.push_back({"unpack, " + name, {unpack(payload, run + unit, unit)}});
    }
}

/// A matrix of elements, turned around.
CopyBench transpose(std::uint64_t lines, std::uint64_t columns, std::uint64_t element) {
  return {fmt::format("transpose, {} x {}, {}-byte elements", lines, columns, element),
          {{0,
            0,
            element,
            {{lines, stride(columns * element), stride(element)},
             {columns, stride(element), stride(lines * element)}}}}};
}

void add_transposes(std::vector<CopyBench>& benches, std::uint64_t payload) {
  for (std::uint64_t const element : {1U, 2U, 4U, 8U, 16U}) {
    std::uint64_t lines = 1;
    while (4 * lines * lines * element <= payload) lines *= 2;
    benches.push_back(transpose(lines, payload / element / lines, element));
  }
  std::uint64_t lines = 1;
  while (4 * lines * lines * 2 <= payload) lines *= 2;
  benches.push_back(transpose(lines - 3, payload / 2 / lines - 5, 2));
  benches.push_back(transpose(lines - 3, payload / 4 / lines - 5, 4));
}

/// Elements in turn to two blocks, and back.
void add_interleaves(std::vector<CopyBench>& benches, std::uint64_t payload) {
  for (std::uint64_t const element : {2U, 4U}) {
    std::uint64_t const count = payload / element / 2;
    std::uint64_t const block = count * element;
    auto const near = stride(element);
    auto const apart = stride(2 * element);
    benches.push_back({fmt::format("de-interleave by two, {}-byte elements", element),
                       {{0, 0, element, {{count, apart, near}}},
                        {element, block, element, {{count, apart, near}}}}});
    benches.push_back({fmt::format("interleave by two, {}-byte elements", element),
                       {{0, 0, element, {{count, near, apart}}},
                        {block, element, element, {{count, near, apart}}}}});
    benches.push_back({fmt::format("every second {}-byte element", element),
                       {{0, 0, element, {{payload / element, apart, near}}}}});
  }
}

/// Blocks of many tensors at once: as many copies as a round of the program has.
void add_many(std::vector<CopyBench>& benches, std::uint64_t payload) {
  constexpr std::uint64_t tensors = 512;
  std::uint64_t const part = payload / tensors / 4096 * 4096;
  if (part == 0) return;
  CopyBench many{fmt::format("pack of {} tensors, runs of 1 KiB", tensors), {}};
  for (std::uint64_t t = 0; t < tensors; ++t) {
    BenchCopy one = pack(part, 1024, 2 * t * part);
    one.to = t * part;
    many.copies.push_back(std::move(one));
  }
  benches.push_back(std::move(many));
}

std::vector<CopyRequest> requests_of(CopyBench const& bench) {
  std::vector<CopyRequest> requests;
  for (BenchCopy const& copy : bench.copies)
    requests.push_back({copy.from, copy.to, copy.run_bytes, copy.dims});
  return requests;
}

/// Looks at some random runs of the target of pass 0.
void compare_some(Testbed& testbed, Slots& slots, CopyBench const& bench, std::uint64_t seed) {
  constexpr int looks = 48;
  constexpr std::uint64_t most_of_a_run = 4096;
  std::mt19937_64 random(seed);
  for (int look = 0; look < looks; ++look) {
    BenchCopy const& copy = bench.copies[random() % bench.copies.size()];
    std::uint64_t from = copy.from;
    std::uint64_t to = copy.to;
    for (ByteDim const& dim : copy.dims) {
      std::uint64_t const index =
          look < 2 ? (dim.count - 1) * static_cast<std::uint64_t>(look) : random() % dim.count;
      from += index * static_cast<std::uint64_t>(dim.from_stride);
      to += index * static_cast<std::uint64_t>(dim.to_stride);
    }
    std::uint64_t const bytes = std::min(copy.run_bytes, most_of_a_run);
    std::vector<std::byte> const found = testbed.download(slots.to(0) + to, bytes);
    for (std::uint64_t i = 0; i < bytes; ++i)
      expect(found[i] == random_byte(slots.seed_of(0), from + i),
             "{}: byte {} of the target is wrong", bench.name, to + i);
  }
}

void run(Testbed& testbed, Slots& slots, BenchOptions const& options, CopyBench const& bench) {
  std::vector<CopyRequest> const requests = requests_of(bench);
  std::uint64_t const payload = bytes_of(requests);
  Program program;
  add_copies(program, requests);
  LoadedProgram const loaded(testbed, program);
  DeviceStream& stream = testbed.stream();
  fill_random(stream, slots.to(0), slots.bytes() / 8 * 8, options.seed + 1000);
  loaded.put(stream, slots.from(0), slots.to(0));
  finish(stream);
  compare_some(testbed, slots, bench, options.seed);
  PairOfPasses const times = time_in_turn(
      stream, options.passes,
      [&](int pass) { stream.copy(slots.to(pass + 1), slots.from(pass + 1), payload); },
      [&](int pass) { loaded.put(stream, slots.from(pass + 3), slots.to(pass + 3)); });
  double const by_median = times.first.median / times.second.median;
  double const by_least = times.first.least / times.second.least;
  std::string const result =
      fmt::format("{:.2f} of a copy (best {:.2f}); payload {}, read + write {} (copy {})",
                  by_median, by_least, rate(payload, times.second.median),
                  rate(2 * payload, times.second.median), rate(2 * payload, times.first.median));
  std::string verdict = "-";
  if (bench.bar > 0 && !testbed.emulated())
    verdict = by_median >= bench.bar ? fmt::format("reached {:.2f}", bench.bar)
                                     : fmt::format("BELOW {:.2f}", bench.bar);
  print_row("bench", bench.name, result, verdict);
}

}  // namespace

void bench_copies(Testbed& testbed, Slots& slots, BenchOptions const& options) {
  std::vector<CopyBench> benches;
  add_aligned(benches, options.payload);
  add_misaligned(benches, options.payload);
  add_transposes(benches, options.payload);
  add_interleaves(benches, options.payload);
  add_many(benches, options.payload);
  std::size_t wrong = 0;
  for (CopyBench const& bench : benches) {
    try {
      run(testbed, slots, options, bench);
    } catch (CheckFailed const& failure) {
      print_row("bench", bench.name, failure.what(), "FAILED");
      ++wrong;
    }
  }
  expect(wrong == 0, "{} of {} copies gave wrong bytes", wrong, benches.size());
}

}  // namespace reshard::test
