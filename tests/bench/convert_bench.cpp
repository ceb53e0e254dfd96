// How fast one core converts, in results per second, beside memcpy of as many bytes: from a MiB or
// two that were just read into a memory that no cache holds, as a view is read.

#include <cstring>
#include <random>
#include <string>

#include <benchmark/benchmark.h>

#include "core/quant/convert.hpp"
#include "core/quant/dequantise.hpp"
#include "core/quant/encode/encode.hpp"

namespace {

using namespace reshard;
using quant::CodeFormat;
using quant::SecondScale;

constexpr std::size_t memory_bytes = std::size_t{128} << 20U;
constexpr std::size_t result_bytes = std::size_t{2} << 20U;

/// Calls `work` with one part of the results after the other.
template <class Work>
void over_results(benchmark::State& state, Work work) {
  static std::vector<std::byte> memory(memory_bytes, std::byte{1});
  std::size_t at = 0;
  for (auto _ : state) {
    work(std::span(memory).subspan(at, result_bytes));
    benchmark::ClobberMemory();
    at = (at + result_bytes) % memory_bytes;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(result_bytes));
}

void copy(benchmark::State& state) {
  std::vector<std::byte> const from(result_bytes, std::byte{2});
  over_results(state,
               [&](std::span<std::byte> to) { std::memcpy(to.data(), from.data(), to.size()); });
}
BENCHMARK(copy);

void put(std::vector<std::byte>& bytes, std::size_t i, DType dtype, float value) {
  auto const size = static_cast<std::size_t>(bits(dtype) / 8);
  std::span const to = std::span(bytes).subspan(i * size, size);
  std::span const from = std::as_bytes(std::span(&value, 1));
  if (dtype == DType::f32)
    std::memcpy(to.data(), from.data(), size);
  else
    quant::round_values(from, dtype, to);
}

/// Values of weights: `count` of them in `dtype`, which `also` holds as well.
std::vector<std::byte> weights(std::size_t count, DType dtype, DType also) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.5F);
  std::vector<std::byte> bytes(count * static_cast<std::size_t>(bits(dtype) / 8));
  if (bits(dtype) == 8) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 0x78U);
    return bytes;
  }
  // Eight digits and no small numbers: F16 and BF16 hold them.
  bool const shared = dtype != also && also != DType::f32 && also != DType::f64;
  for (std::size_t i = 0; i < count; ++i) {
    float value = normal(random);
    if (shared || dtype == DType::f64) {
      value = value < 0 ? value - 0.01F : value + 0.01F;
      std::uint32_t code = 0;
      std::memcpy(&code, &value, sizeof code);
      code &= 0xffff0000U;
      std::memcpy(&value, &code, sizeof code);
    }
    auto const wide = static_cast<double>(value);
    if (dtype == DType::f64)
      std::memcpy(bytes.data() + i * sizeof wide, &wide, sizeof wide);
    else
      put(bytes, i, dtype, value);
  }
  return bytes;
}

void cast(benchmark::State& state, DType stored, DType wanted) {
  auto const count = result_bytes / static_cast<std::size_t>(bits(wanted) / 8);
  std::vector<std::byte> const from = weights(count, stored, wanted);
  over_results(state, [&](std::span<std::byte> to) {
    if (quant::convert(stored, from, 0, wanted, to)) state.SkipWithError("not exact");
  });
}
BENCHMARK_CAPTURE(cast, bf16_to_f32, DType::bf16, DType::f32);
BENCHMARK_CAPTURE(cast, f32_to_bf16, DType::f32, DType::bf16);
BENCHMARK_CAPTURE(cast, f16_to_f32, DType::f16, DType::f32);
BENCHMARK_CAPTURE(cast, f32_to_f16, DType::f32, DType::f16);
BENCHMARK_CAPTURE(cast, bf16_to_f16, DType::bf16, DType::f16);
BENCHMARK_CAPTURE(cast, f16_to_bf16, DType::f16, DType::bf16);
BENCHMARK_CAPTURE(cast, f64_to_f32, DType::f64, DType::f32);
BENCHMARK_CAPTURE(cast, f32_to_f64, DType::f32, DType::f64);
BENCHMARK_CAPTURE(cast, f64_to_bf16, DType::f64, DType::bf16);
BENCHMARK_CAPTURE(cast, bf16_to_f64, DType::bf16, DType::f64);
BENCHMARK_CAPTURE(cast, e4m3_to_bf16, DType::f8_e4m3, DType::bf16);
BENCHMARK_CAPTURE(cast, e4m3_to_f32, DType::f8_e4m3, DType::f32);
BENCHMARK_CAPTURE(cast, e5m2_to_f16, DType::f8_e5m2, DType::f16);

void rounded(benchmark::State& state, DType wanted) {
  std::vector<std::byte> const from = weights(result_bytes / 2, DType::f32, DType::f32);
  over_results(state, [&](std::span<std::byte> to) { quant::round_values(from, wanted, to); });
}
BENCHMARK_CAPTURE(rounded, f32_to_bf16, DType::bf16);
BENCHMARK_CAPTURE(rounded, f32_to_f16, DType::f16);

std::vector<std::byte> scales(DType dtype, Index count, std::mt19937_64& random) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * (bits(dtype) / 8)));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    if (dtype == DType::u8)
      bytes[i] = static_cast<std::byte>(112 + random() % 16);
    else if (bits(dtype) == 8)
      bytes[i] = static_cast<std::byte>(random() % 0x7fU);
    else
      put(bytes, i, dtype, 0.001F + 1e-8F * static_cast<float>(random() % 1'000'000));
  }
  return bytes;
}

/// A matrix of 4096 columns, some of whose rows are computed at a time.
void dequantise(benchmark::State& state, quant::Scheme const& scheme,
                quant::Companions const& companions) {
  constexpr Index columns = 4096;
  constexpr Index rows = static_cast<Index>(result_bytes) / 2 / columns;
  std::mt19937_64 random(2);
  quant::Dequantiser decoder(scheme, {.stack = 1, .rows = 8 * rows, .columns = columns},
                             companions);
  std::vector<std::byte> codes(static_cast<std::size_t>(decoder.code_bytes()));
  for (std::byte& byte : codes) byte = static_cast<std::byte>(random());
  Index const scale_rows = decoder.scale_rows();
  auto const all_scales = scales(companions.scale, scale_rows * decoder.scale_columns(), random);
  auto const seconds = scales(companions.second, 1, random);
  auto const zeros = scales(DType::u8, 4 * decoder.zero_rows() * decoder.zero_columns(), random);
  auto const factors = scales(DType::bf16, columns, random);
  std::vector<std::int32_t> groups(static_cast<std::size_t>(decoder.shape().rows));
  for (std::size_t i = 0; i < groups.size(); ++i)
    groups[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(scale_rows));
  auto const part_of = [](std::vector<std::byte> const& bytes, quant::FlatRange const& range,
                          Index size) {
    return std::span(bytes).subspan(static_cast<std::size_t>(range.begin * size),
                                    static_cast<std::size_t>((range.end - range.begin) * size));
  };
  Index first = 0;
  over_results(state, [&](std::span<std::byte> to) {
    quant::RowPart const part{.first_row = first, .rows = rows, .columns = columns};
    quant::Needs const needs = decoder.needs_of(part);
    Index const zero_size = bits(companions.zero_points.value_or(DType::i8)) / 8;
    decoder.run(
        part,
        {part_of(codes, needs.code_bytes, 1),
         part_of(all_scales, needs.scales, bits(companions.scale) / 8),
         part_of(seconds, needs.seconds, bits(companions.second) / 8),
         part_of(zeros, needs.zero_points, zero_size),
         companions.groups ? std::as_bytes(std::span(groups)) : std::span<std::byte const>(),
         companions.factors ? std::span<std::byte const>(factors) : std::span<std::byte const>()},
        to);
    first = (first + rows) % (8 * rows);
  });
}

constexpr Index all = 0;

void blocks(benchmark::State& state, CodeFormat codes, Index rows, Index columns, DType scale) {
  dequantise(state, {.codes = codes, .block_rows = rows, .block_columns = columns},
             {.scale = scale});
}
BENCHMARK_CAPTURE(blocks, fp8_128_by_128, CodeFormat::e4m3, 128, 128, DType::f32);
BENCHMARK_CAPTURE(blocks, fp8_rows, CodeFormat::e4m3, 1, all, DType::f32);
BENCHMARK_CAPTURE(blocks, fp8_tensor, CodeFormat::e4m3, all, all, DType::f32);
BENCHMARK_CAPTURE(blocks, fp8_1_by_128, CodeFormat::e4m3, 1, 128, DType::f32);
BENCHMARK_CAPTURE(blocks, mxfp8, CodeFormat::e4m3, 1, 32, DType::u8);
BENCHMARK_CAPTURE(blocks, mxfp4, CodeFormat::e2m1, 1, 32, DType::u8);
BENCHMARK_CAPTURE(blocks, int8_rows, CodeFormat::i8, 1, all, DType::f32);
BENCHMARK_CAPTURE(blocks, int8_by_128, CodeFormat::i8, 1, 128, DType::f32);
BENCHMARK_CAPTURE(blocks, int8_by_128_bf16, CodeFormat::i8, 1, 128, DType::bf16);
BENCHMARK_CAPTURE(blocks, int8_by_32_f16, CodeFormat::i8, 1, 32, DType::f16);

void nvfp4(benchmark::State& state, SecondScale second) {
  dequantise(state,
             {.codes = CodeFormat::e2m1, .block_rows = 1, .block_columns = 16, .second = second},
             {.scale = DType::f8_e4m3});
}
BENCHMARK_CAPTURE(nvfp4, times, SecondScale::times);
BENCHMARK_CAPTURE(nvfp4, divided_by, SecondScale::divided_by);

void packed(benchmark::State& state, int bits, Index columns, std::optional<DType> zero_points) {
  dequantise(state,
             {.codes = CodeFormat::integer,
              .integer_bits = bits,
              .block_rows = 1,
              .block_columns = columns},
             {.scale = DType::bf16, .zero_points = zero_points});
}
BENCHMARK_CAPTURE(packed, int4_by_128, 4, 128, std::nullopt);
BENCHMARK_CAPTURE(packed, int4_by_32, 4, 32, std::nullopt);
BENCHMARK_CAPTURE(packed, int4_by_128_zero_points, 4, 128, DType::i32);
BENCHMARK_CAPTURE(packed, int8_by_128, 8, 128, std::nullopt);
BENCHMARK_CAPTURE(packed, int8_by_128_zero_points, 8, 128, DType::i32);
BENCHMARK_CAPTURE(packed, int2_by_128, 2, 128, std::nullopt);
BENCHMARK_CAPTURE(packed, int3_by_128, 3, 128, std::nullopt);
BENCHMARK_CAPTURE(packed, int5_by_128, 5, 128, std::nullopt);
BENCHMARK_CAPTURE(packed, int6_by_128, 6, 128, std::nullopt);
BENCHMARK_CAPTURE(packed, int7_by_128, 7, 128, std::nullopt);

void by_columns(benchmark::State& state, quant::Scheme const& scheme,
                quant::Companions const& companions) {
  dequantise(state, scheme, companions);
}
using quant::CodeOrder;
BENCHMARK_CAPTURE(by_columns, gptq4,
                  {CodeFormat::integer, 4, 128, 1, SecondScale::none, CodeOrder::rows, 1},
                  {.scale = DType::f16, .zero_points = DType::i32});
BENCHMARK_CAPTURE(by_columns, gptq4_act_order,
                  {CodeFormat::integer, 4, 128, 1, SecondScale::none, CodeOrder::rows, 1},
                  {.scale = DType::f16, .zero_points = DType::i32, .groups = true});
BENCHMARK_CAPTURE(by_columns, gptq3,
                  {CodeFormat::integer, 3, 128, 1, SecondScale::none, CodeOrder::rows, 1},
                  {.scale = DType::f16, .zero_points = DType::i32});
BENCHMARK_CAPTURE(by_columns, awq4,
                  {CodeFormat::integer, 4, 128, 1, SecondScale::none, CodeOrder::interleaved},
                  {.scale = DType::f16, .zero_points = DType::i32});
BENCHMARK_CAPTURE(by_columns, modelopt_int4,
                  {CodeFormat::i4, 4, 1, 128, SecondScale::none, CodeOrder::row_pairs},
                  {.scale = DType::f32, .factors = DType::bf16});
BENCHMARK_CAPTURE(by_columns, nvfp4_down_the_rows,
                  {CodeFormat::e2m1, 4, 16, 1, SecondScale::times, CodeOrder::row_pairs},
                  {.scale = DType::f8_e4m3});
BENCHMARK_CAPTURE(by_columns, nvfp4_with_factors, {CodeFormat::e2m1, 4, 1, 16, SecondScale::times},
                  {.scale = DType::f8_e4m3, .factors = DType::bf16});
BENCHMARK_CAPTURE(by_columns, bitsandbytes_int8,
                  {CodeFormat::i8, 8, 1, 0, SecondScale::none, CodeOrder::columns, 0, 127},
                  {.scale = DType::f32});

/// 128 rows of weights at a time. The bytes are those of the weights, as many as are copied.
void encode(benchmark::State& state, quant::Encoding const& encoding, DType dtype) {
  constexpr Index rows = 128;
  Index const columns = static_cast<Index>(result_bytes) / (bits(dtype) / 8) / rows;
  std::vector<std::byte> const from =
      weights(static_cast<std::size_t>(rows * columns), dtype, dtype);
  quant::Encoder const encoder(encoding, dtype, columns);
  std::vector<std::byte> of_blocks(
      static_cast<std::size_t>(rows / encoding.block_rows * encoder.scale_row_bytes()));
  over_results(state, [&](std::span<std::byte> to) {
    auto const codes = to.first(static_cast<std::size_t>(rows * encoder.code_row_bytes()));
    if (encoder.run(rows, from, codes, of_blocks)) state.SkipWithError("not finite");
  });
}
using quant::CodeKind;
using quant::ScaleRule;
BENCHMARK_CAPTURE(encode, fp8_128_by_128,
                  {CodeKind::e4m3, ScaleRule::reciprocal, 128, 128, DType::f32}, DType::bf16);
BENCHMARK_CAPTURE(encode, fp8_128_by_128_f32,
                  {CodeKind::e4m3, ScaleRule::reciprocal, 128, 128, DType::f32}, DType::f32);
BENCHMARK_CAPTURE(encode, fp8_128_by_128_quotient,
                  {CodeKind::e4m3, ScaleRule::quotient, 128, 128, DType::bf16}, DType::bf16);
BENCHMARK_CAPTURE(encode, fp8_rows, {CodeKind::e4m3, ScaleRule::quotient, 1, 0, DType::bf16},
                  DType::bf16);
BENCHMARK_CAPTURE(encode, mxfp8, {CodeKind::e4m3, ScaleRule::power, 1, 32, DType::u8}, DType::bf16);
BENCHMARK_CAPTURE(encode, int4_by_128, {CodeKind::packed, ScaleRule::quotient, 1, 128, DType::bf16},
                  DType::bf16);

void int8_zero_bytes(benchmark::State& state) {
  dequantise(state, {.codes = CodeFormat::i8, .block_rows = 1, .block_columns = 128},
             {.scale = DType::f16, .zero_points = DType::i8});
}
BENCHMARK(int8_zero_bytes);

}  // namespace

BENCHMARK_MAIN();
