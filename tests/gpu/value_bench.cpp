// Conversions, dequantisation and checksums, in bytes per second, beside a plain copy of the same
// traffic on the same device.

#include <algorithm>
#include <cstring>

#include "core/device/digest_program.hpp"
#include "core/device/strided_digest.hpp"
#include "core/device/value_program.hpp"
#include "core/quant/convert.hpp"
#include "tests/gpu/bench.hpp"
#include "tests/gpu/random_words.hpp"

namespace reshard::test {
namespace {

// Each half of a word is an F32 that BF16 holds.
constexpr std::uint64_t bf16_in_f32 = 0xffff0000ffff0000U;

// What stands before the results in a target: a verdict or a sum, which the plain copies leave
// alone.
constexpr std::uint64_t front_bytes = 256;

struct ValueBench {
  std::string name;
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

void run(Testbed& testbed, Slots& slots, BenchOptions const& options, ValueBench const& bench,
         Program const& program) {
  LoadedProgram const loaded(testbed, program);
  DeviceStream& stream = testbed.stream();
  std::uint64_t const traffic = bench.read + bench.written;
  PairOfPasses const times = time_in_turn(
      stream, options.passes,
      [&](int pass) {
        stream.copy(slots.to(pass + 1) + front_bytes, slots.from(pass + 1), traffic / 2);
      },
      [&](int pass) { loaded.put(stream, slots.from(pass + 3), slots.to(pass + 3)); });
  print_row(
      "bench", bench.name,
      fmt::format("{:.2f} of a copy of as much traffic (best {:.2f}); read {}, read + write {}",
                  times.first.median / times.second.median, times.first.least / times.second.least,
                  rate(bench.read, times.second.median), rate(traffic, times.second.median)),
      "-");
}

std::vector<std::byte> part_of_source(Slots& slots, std::uint64_t from, std::uint64_t bytes,
                                      std::uint64_t mask) {
  std::vector<std::byte> part(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) {
    std::uint64_t const at = from + i;
    part[i] =
        static_cast<std::byte>((random_word(slots.seed_of(0), at / 8) & mask) >> 8 * (at % 8));
  }
  return part;
}

/// Some ranges of elements of the target of pass 0, the last one among them.
void compare_with_host(Testbed& testbed, Slots& slots, ConvertRequest const& request,
                       std::string const& name) {
  constexpr std::uint64_t looks = 24;
  std::uint64_t const count = std::min<std::uint64_t>(request.count, 4096);
  auto const from_bytes = static_cast<std::uint64_t>(bits(request.stored)) / 8;
  auto const to_bytes = static_cast<std::uint64_t>(bits(request.wanted)) / 8;
  std::uint64_t const mask = request.stored == DType::f32 ? bf16_in_f32 : all_bits;
  for (std::uint64_t look = 0; look < looks; ++look) {
    std::uint64_t const first = (request.count - count) / (looks - 1) * look;
    std::vector<std::byte> expected(count * to_bytes);
    quant::convert(request.stored,
                   part_of_source(slots, first * from_bytes, count * from_bytes, mask), 0,
                   request.wanted, expected);
    std::vector<std::byte> const found =
        testbed.download(slots.to(0) + request.to + first * to_bytes, count * to_bytes);
    expect(found == expected, "convert {}: elements from {} on are wrong", name, first);
  }
}

void bench_convert(Testbed& testbed, Slots& slots, BenchOptions const& options,
                   ConvertRequest request, std::string const& name) {
  auto const element = [](DType dtype) { return static_cast<std::uint64_t>(bits(dtype)) / 8; };
  std::uint64_t const larger = std::max(element(request.stored), element(request.wanted));
  request.count = options.payload / larger;
  request.to = front_bytes;
  std::vector<ConvertRequest> const requests{request};
  Program program;
  add_converts(program, requests, 0);
  std::vector<std::byte> empty(verdict_bytes);
  clear_verdict(empty.data());
  for (int s = 0; s < Slots::count; ++s) testbed.upload(slots.to(s), empty);
  run(testbed, slots, options,
      {"convert " + name, request.count * element(request.stored),
       request.count * element(request.wanted)},
      program);
  for (int s = 0; s < Slots::count; ++s) {
    std::vector<std::byte> const verdict = testbed.download(slots.to(s), verdict_bytes);
    expect(!inexact_of(verdict.data()).has_value(),
           "convert {}: an exact conversion was called inexact", name);
  }
  testbed.carry_out(program, slots.from(0), slots.to(0));
  compare_with_host(testbed, slots, request, name);
}

void bench_dequantise(Testbed& testbed, Slots& slots, BenchOptions const& options) {
  constexpr std::int64_t columns = 7168;
  constexpr std::int64_t block = 128;
  auto const rows = static_cast<std::int64_t>(options.payload / 2 / columns) / block * block;
  if (rows == 0) return;
  quant::Scheme scheme;
  scheme.codes = quant::CodeFormat::e4m3;
  scheme.block_rows = block;
  scheme.block_columns = block;
  quant::Dequantiser decoder(scheme, {1, rows, columns}, {});
  auto const codes = static_cast<std::uint64_t>(rows) * columns;
  std::vector<DequantiseRequest> const requests{{.decoder = &decoder,
                                                 .part = {0, rows, 0, columns},
                                                 .codes = 0,
                                                 .scales = codes,
                                                 .seconds = 0,
                                                 .zero_points = 0,
                                                 .to = front_bytes}};
  Program program;
  add_dequantises(program, requests);
  std::uint64_t const scales =
      static_cast<std::uint64_t>(decoder.scale_rows() * decoder.scale_columns()) * 4;
  run(testbed, slots, options,
      {"dequantise FP8 blocks of 128 x 128 to BF16", codes + scales, 2 * codes}, program);
  testbed.carry_out(program, slots.from(0), slots.to(0));
  for (std::int64_t const row : {std::int64_t{0}, std::int64_t{1}, rows / 2 + 77, rows - 1}) {
    quant::RowPart const part{row, 1, 0, columns};
    quant::Needs const needs = decoder.needs_of(part);
    auto const range = [&](quant::FlatRange const& wanted, std::uint64_t from,
                           std::int64_t element) {
      return part_of_source(slots, from + static_cast<std::uint64_t>(wanted.begin * element),
                            static_cast<std::uint64_t>((wanted.end - wanted.begin) * element),
                            all_bits);
    };
    std::vector<std::byte> const row_codes = range(needs.code_bytes, 0, 1);
    std::vector<std::byte> const row_scales = range(needs.scales, codes, 4);
    std::vector<std::byte> expected(2 * columns);
    decoder.run(part, {row_codes, row_scales, {}, {}, {}, {}}, expected);
    std::vector<std::byte> const found = testbed.download(
        slots.to(0) + front_bytes + static_cast<std::uint64_t>(row) * expected.size(),
        expected.size());
    expect(found == expected, "dequantise: row {} is wrong", row);
  }
}

void bench_digest(Testbed& testbed, Slots& slots, BenchOptions const& options,
                  std::uint64_t run_bytes) {
  std::uint64_t const runs = options.payload / run_bytes;
  std::vector<ByteDim> const dims{
      {runs, static_cast<std::int64_t>(2 * run_bytes), static_cast<std::int64_t>(2 * run_bytes)}};
  DigestRequest request;
  request.run_bytes = runs == 1 ? options.payload : run_bytes;
  if (runs > 1) request.dims = dims;
  request.tensor_bytes = 2 * options.payload;
  std::vector<DigestRequest> const requests{request};
  Program program;
  add_digests(program, requests);
  std::string const name =
      runs == 1 ? "checksum of one run" : fmt::format("checksum, runs of {} B", run_bytes);
  run(testbed, slots, options, {name, runs * run_bytes, 0}, program);
  if (runs != 1 && run_bytes != 4096) return;
  testbed.upload(slots.to(0), std::vector<std::byte>(front_bytes));
  testbed.carry_out(program, slots.from(0), slots.to(0));
  std::uint64_t found = 0;
  std::memcpy(&found, testbed.download(slots.to(0), 8).data(), 8);
  std::vector<std::byte> const source = testbed.download(slots.from(0), 2 * options.payload);
  std::uint64_t const after = request.tensor_bytes - request.run_bytes;
  expect(found == strided_digest(source.data(), request.run_bytes, request.dims, after),
         "{}: another value than on the host", name);
}

}  // namespace

void bench_values(Testbed& testbed, Slots& slots, BenchOptions const& options) {
  bench_dequantise(testbed, slots, options);
  for (std::uint64_t const run_bytes :
       {options.payload, std::uint64_t{65536}, std::uint64_t{4096}, std::uint64_t{512}})
    bench_digest(testbed, slots, options, run_bytes);
  ConvertRequest request;
  request.stored = DType::bf16;
  request.wanted = DType::f32;
  bench_convert(testbed, slots, options, request, "BF16 to F32");
  request.stored = DType::f8_e4m3;
  request.wanted = DType::bf16;
  bench_convert(testbed, slots, options, request, "F8_E4M3 to BF16");
  request.stored = DType::f32;
  slots.fill_sources(testbed, bf16_in_f32);
  bench_convert(testbed, slots, options, request, "F32 to BF16");
}

}  // namespace reshard::test
