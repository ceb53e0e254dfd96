#include "tests/support/value_cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <fmt/format.h>

#include "core/device/kernels/value_convert.hpp"
#include "core/quant/convert.hpp"
#include "tests/support/slow_quant.hpp"

namespace reshard::test {
namespace {

using Random = std::mt19937_64;

constexpr std::byte poison{0xcd};
constexpr std::array stored_dtypes{DType::f64, DType::f32,     DType::bf16,
                                   DType::f16, DType::f8_e5m2, DType::f8_e4m3};
constexpr std::array wanted_dtypes{DType::f64, DType::f32, DType::bf16, DType::f16};

std::uint64_t below(Random& random, std::uint64_t end) { return random() % end; }

std::size_t bytes_of(DType dtype) { return static_cast<std::size_t>(bits(dtype)) / 8; }

/// The beginning of the next range: any address, one that suits the elements, or a multiple of 16;
/// a gap before it.
std::uint64_t next_place(std::size_t end, std::size_t element_bytes, Random& random) {
  std::uint64_t const at = end + 1 + below(random, 40);
  std::uint64_t const unit =
      std::array<std::uint64_t, 4>{1, element_bytes, element_bytes, 16}[below(random, 4)];
  return (at + unit - 1) / unit * unit;
}

/// Appends at a random place.
std::uint64_t put(std::vector<std::byte>& memory, std::span<std::byte const> bytes,
                  std::size_t element_bytes, Random& random) {
  std::uint64_t const at = next_place(memory.size(), element_bytes, random);
  memory.resize(at, poison);
  memory.insert(memory.end(), bytes.begin(), bytes.end());
  return at;
}

double value_of(DType dtype, std::uint64_t code) {
  return quant::decode(*quant::float_format(dtype), code);
}

/// What a NaN becomes: its sign and the upper bits of its payload, and still a NaN.
std::uint64_t narrowed_nan(quant::FloatFormat format, double nan) {
  std::uint64_t const bits = std::bit_cast<std::uint64_t>(nan);
  std::uint64_t payload = (bits & ((std::uint64_t{1} << 52U) - 1)) >> (52 - format.fraction_bits);
  if (payload == 0) payload = std::uint64_t{1} << (format.fraction_bits - 1);
  std::uint64_t const exponent = ((std::uint64_t{1} << format.exponent_bits) - 1)
                                 << format.fraction_bits;
  return bits >> 63U << (format.bits() - 1) | exponent | payload;
}

/// value + constant as the nearest element of the dtype. The sum of two doubles with its error, as
/// a long double that lies on the same side of every value and every middle of two that `wanted`
/// has.
std::uint64_t slow_converted(DType wanted, double value, double constant) {
  auto const format = *quant::float_format(wanted);
  if (std::isnan(value)) return narrowed_nan(format, value);
  double const sum = constant == 0 || std::isinf(value) ? value : value + constant;
  long double exact = static_cast<long double>(sum);
  if (std::isfinite(sum) && constant != 0) {
    bool const swap = std::fabs(value) < std::fabs(constant);
    double const large = swap ? constant : value;
    double const error = (swap ? value : constant) - (sum - large);
    if (error != 0)
      exact = nextafterl(exact, error > 0 ? std::numeric_limits<long double>::infinity()
                                          : -std::numeric_limits<long double>::infinity());
  }
  switch (wanted) {
    case DType::f64: return std::bit_cast<std::uint64_t>(sum);
    case DType::f32: return std::bit_cast<std::uint32_t>(static_cast<float>(exact));
    default: return slow_nearest(format.exponent_bits, format.fraction_bits, exact);
  }
}

struct Converts {
  std::vector<ConvertRequest> requests;
  std::vector<std::byte> from;
  std::vector<std::byte> to = std::vector<std::byte>(verdict_bytes);
  std::vector<std::byte> wanted = to;
  std::optional<InexactPlace> inexact;

  /// A request of these elements.
  void add(ConvertRequest request, std::span<std::byte const> elements, Random& random) {
    std::size_t const from_bytes = bytes_of(request.stored);
    std::size_t const to_bytes = bytes_of(request.wanted);
    request.count = elements.size() / from_bytes;
    request.from = put(from, elements, from_bytes, random);
    std::vector<std::byte> results(request.count * to_bytes);
    for (std::uint64_t i = 0; i < request.count; ++i) {
      std::span const result = std::span(results).subspan(i * to_bytes, to_bytes);
      std::span const element = elements.subspan(i * from_bytes, from_bytes);
      if (!quant::convert(request.stored, element, request.constant, request.wanted, result))
        continue;
      if (request.rounding == Rounding::exact && !inexact)
        inexact = InexactPlace{requests.size(), i};
      std::uint64_t code = 0;
      std::memcpy(&code, element.data(), from_bytes);
      code = slow_converted(request.wanted, value_of(request.stored, code), request.constant);
      std::memcpy(result.data(), &code, to_bytes);
    }
    request.to = put(wanted, results, to_bytes, random);
    to.resize(wanted.size(), poison);
    requests.push_back(request);
  }

  ConvertCase finish(std::string name, Random& random) {
    for (auto* memory : {&to, &wanted}) memory->resize(memory->size() + 40, poison);
    if (inexact) {
      std::uint64_t const mark = inexact_mark(inexact->request, inexact->element);
      std::memcpy(wanted.data() + verdict_place, &mark, sizeof mark);
    }
    Program program;
    program.bytes.resize(below(random, 40));  // of another one
    add_converts(program, requests, verdict_place);
    return {
        {std::move(name), std::move(program), std::move(from), std::move(to), std::move(wanted)},
        inexact};
  }
};

std::vector<std::byte> all_codes(DType dtype) {
  std::size_t const size = bytes_of(dtype);
  std::vector<std::byte> codes;
  for (std::uint32_t code = 0; code < 1U << 8 * size; ++code) {
    std::byte const bytes[2] = {static_cast<std::byte>(code), static_cast<std::byte>(code >> 8U)};
    codes.insert(codes.end(), bytes, bytes + size);
  }
  return codes;
}

/// Mostly sums that `wanted` has; any bits for one of `one_in`.
std::vector<std::byte> random_elements(ConvertRequest const& request, std::uint64_t count,
                                       std::uint64_t one_in, Random& random) {
  auto const source = *quant::float_format(request.stored);
  auto const target = *quant::float_format(request.wanted);
  std::size_t const size = bytes_of(request.stored);
  std::vector<std::byte> elements(count * size);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t code = random() >> (64 - source.bits());
    if (below(random, one_in) != 0) {
      // A value that both formats have, less the constant.
      double const value = quant::decode(target, random() >> (64 - target.bits()));
      bool const has_ieee_codes = source.specials == quant::Specials::ieee;
      double const before =
          request.constant == 0
              ? value
              : static_cast<double>(static_cast<int>(below(random, 120))) - request.constant;
      if (has_ieee_codes)
        code = quant::encode(source, before).code;
      else
        code = 0x38 + below(random, 8);  // 1 to 1.875
    }
    std::memcpy(elements.data() + i * size, &code, size);
  }
  return elements;
}

std::uint64_t random_count(Random& random) {
  switch (below(random, 4)) {
    case 0: return below(random, 20);
    case 1: return below(random, 300);
    case 2: return below(random, 3000);
    default: return 7000 + below(random, 12000);  // several blocks
  }
}

/// Several whole rows, or some columns of one.
quant::RowPart random_part(quant::MatrixShape const& shape, Random& random) {
  auto const index_below = [&](Index end) {
    return static_cast<Index>(below(random, static_cast<std::uint64_t>(end)));
  };
  Index const rows = shape.stack * shape.rows;
  quant::RowPart part{
      .first_row = index_below(rows), .rows = 1, .first_column = 0, .columns = shape.columns};
  if (below(random, 2) == 0) {
    part.rows = 1 + index_below(rows - part.first_row);
  } else {
    part.first_column = index_below(shape.columns);
    part.columns = 1 + index_below(shape.columns - part.first_column);
  }
  return part;
}

std::span<std::byte const> range_of(std::vector<std::byte> const& bytes,
                                    quant::FlatRange const& range, std::size_t size) {
  auto const begin = static_cast<std::size_t>(range.begin);
  return std::span(bytes).subspan(begin * size,
                                  (static_cast<std::size_t>(range.end) - begin) * size);
}

/// One part of a weight as a request, with what it needs put into `from` and what it gives put into
/// `wanted`.
DequantiseRequest add_part(quant::Dequantiser& decoder, SlowWeight const& weight,
                           quant::RowPart const& part, DeviceCase& device, Random& random) {
  quant::Needs const needs = decoder.needs_of(part);
  std::size_t const scale_bytes = bytes_of(weight.companions.scale);
  std::size_t const second_bytes = bytes_of(weight.companions.second);
  std::size_t const zero_bytes = bytes_of(weight.companions.zero_points.value_or(DType::i8));
  quant::StoredBytes const stored{range_of(weight.codes, needs.code_bytes, 1),
                                  range_of(weight.scales, needs.scales, scale_bytes),
                                  range_of(weight.seconds, needs.seconds, second_bytes),
                                  range_of(weight.zero_points, needs.zero_points, zero_bytes),
                                  {},
                                  {}};
  DequantiseRequest request{.decoder = &decoder, .part = part};
  request.codes = put(device.from, stored.codes, 8, random);
  request.scales = put(device.from, stored.scales, scale_bytes, random);
  request.seconds = put(device.from, stored.seconds, second_bytes, random);
  request.zero_points = put(device.from, stored.zero_points, zero_bytes, random);
  std::vector<std::byte> elements(static_cast<std::size_t>(2 * part.rows * part.columns));
  decoder.run(part, stored, elements);
  request.to = put(device.wanted, elements, 2, random);
  device.to.resize(device.wanted.size(), poison);
  return request;
}

DeviceCase dequantise_case(QuantForm const& form, quant::MatrixShape const& shape, Random& random) {
  quant::Companions companions = form.companions;
  if (form.scheme.second != quant::SecondScale::none && below(random, 2) == 0)
    companions.seconds = shape.stack;
  SlowWeight const weight = random_weight(form.scheme, shape, companions, random);
  quant::Dequantiser decoder(form.scheme, shape, companions);
  DeviceCase device{fmt::format("{} {}, {} x {} x {}", form.name, form.scheme.integer_bits,
                                shape.stack, shape.rows, shape.columns),
                    {},
                    {},
                    {},
                    {}};
  std::vector<DequantiseRequest> requests;
  quant::RowPart const all{.first_row = 0,
                           .rows = shape.stack * shape.rows,
                           .first_column = 0,
                           .columns = shape.columns};
  requests.push_back(add_part(decoder, weight, all, device, random));
  for (int i = 0; i < 12; ++i)
    requests.push_back(add_part(decoder, weight, random_part(shape, random), device, random));
  for (auto* memory : {&device.to, &device.wanted}) memory->resize(memory->size() + 40, poison);
  add_dequantises(device.program, requests);
  return device;
}

}  // namespace

std::vector<DeviceCase> all_code_cases() {
  Random random(1);
  std::vector<DeviceCase> cases;
  for (DType const stored : {DType::bf16, DType::f16, DType::f8_e5m2, DType::f8_e4m3})
    for (DType const wanted : wanted_dtypes)
      for (double const constant : {0.0, 1.0, -1.0, std::ldexp(1.0, -20)}) {
        Converts converts;
        for (Rounding const rounding : {Rounding::nearest_even, Rounding::exact})
          converts.add(
              {.stored = stored, .wanted = wanted, .constant = constant, .rounding = rounding},
              all_codes(stored), random);
        cases.push_back(
            converts
                .finish(fmt::format("all of {} + {} as {}", name(stored), constant, name(wanted)),
                        random)
                .device);
      }
  return cases;
}

ConvertCase random_convert_case(std::uint64_t seed) {
  Random random(seed);
  Converts converts;
  std::uint64_t const one_in = std::array<std::uint64_t, 3>{2, 200, 1U << 30U}[below(random, 3)];
  for (std::uint64_t left = 1 + below(random, 5); left > 0; --left) {
    ConvertRequest request{.stored = stored_dtypes[below(random, stored_dtypes.size())],
                           .wanted = wanted_dtypes[below(random, wanted_dtypes.size())]};
    request.constant =
        std::array{0.0, 0.0, 1.0, -1.0, 0.5, 1 + std::ldexp(1.0, -40)}[below(random, 6)];
    if (below(random, 3) == 0) request.rounding = Rounding::nearest_even;
    converts.add(request, random_elements(request, random_count(random), one_in, random), random);
  }
  return converts.finish(fmt::format("converts, seed {}", seed), random);
}

ConvertCase inexact_case(std::vector<std::uint64_t> const& counts,
                         std::vector<InexactPlace> const& places) {
  Random random(3);
  Converts converts;
  for (std::uint64_t r = 0; r < counts.size(); ++r) {
    std::vector<float> elements(counts[r], 1.5F);
    for (InexactPlace const& place : places)
      if (place.request == r) elements[place.element] = 1.0001F;
    converts.add({.stored = DType::f32, .wanted = DType::bf16}, std::as_bytes(std::span(elements)),
                 random);
  }
  return converts.finish("places of inexact elements", random);
}

std::vector<DeviceCase> dequantise_cases(std::uint64_t seed) {
  Random random(seed);
  std::vector<DeviceCase> cases;
  for (QuantForm const& form : quant_forms())
    for (quant::MatrixShape const& shape : std::vector<quant::MatrixShape>{
             {1, 1, 1}, {1, 7, 33}, {1, 130, 260}, {3, 5, 64}, {2, 33, 40}, {4, 1, 17}})
      cases.push_back(dequantise_case(form, shape, random));
  return cases;
}

}  // namespace reshard::test
