#include "tests/support/slow_quant.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <span>

namespace reshard {
namespace {

Index up(Index a, Index b) { return (a + b - 1) / b; }

Index block_of(Index stated, Index whole) { return stated == 0 ? whole : stated; }

std::uint32_t word_at(std::vector<std::byte> const& bytes, Index word) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + word * 4, 4);
  return value;
}

/// `bits` bits, the first of them number `first_bit` of a run of words that lie `step` words apart.
std::uint32_t packed_at(std::vector<std::byte> const& bytes, Index first_word, Index step,
                        Index first_bit, int bits) {
  std::uint32_t code = 0;
  for (int b = 0; b < bits; ++b) {
    Index const bit = first_bit + b;
    std::uint32_t const word = word_at(bytes, first_word + bit / 32 * step);
    code |= ((word >> static_cast<unsigned>(bit % 32)) & 1U) << static_cast<unsigned>(b);
  }
  return code;
}

double number_of(DType dtype, std::vector<std::byte> const& bytes, Index at) {
  auto const size = static_cast<std::size_t>(bits(dtype) / 8);
  std::uint32_t code = 0;
  std::memcpy(&code, bytes.data() + static_cast<std::size_t>(at) * size, size);
  switch (dtype) {
    case DType::f32: {
      float value = 0;
      std::memcpy(&value, &code, 4);
      return value;
    }
    case DType::bf16: return slow_ieee(8, 7, code);
    case DType::f16: return slow_ieee(5, 10, code);
    case DType::f8_e4m3: return slow_e4m3(code);
    case DType::f8_e5m2: return slow_ieee(5, 2, code);
    case DType::i8: return static_cast<std::int8_t>(code);
    default: return slow_e8m0(code);
  }
}

struct Sizes {
  Index row_words = 0;  // of packed integers
  Index row_bytes = 0;
  Index scale_rows = 0;
  Index scale_columns = 0;
  Index zero_rows = 0;
  Index zero_columns = 0;
  Index code_rows = 0;  // of one matrix
};

bool is_turned(quant::Scheme const& scheme) {
  return scheme.order == quant::CodeOrder::rows || scheme.order == quant::CodeOrder::interleaved;
}

/// The place of a column among the eight of a word.
Index place_in_word(Index column) {
  constexpr std::array<Index, 8> columns{0, 2, 4, 6, 1, 3, 5, 7};
  return std::find(columns.begin(), columns.end(), column % 8) - columns.begin();
}

Sizes sizes_of(quant::Scheme const& scheme, quant::MatrixShape const& shape) {
  Sizes sizes;
  sizes.row_words = up(shape.columns * scheme.integer_bits, 32);
  sizes.row_bytes = shape.columns;
  if (scheme.codes == quant::CodeFormat::e2m1) sizes.row_bytes = up(shape.columns, 2);
  if (scheme.codes == quant::CodeFormat::integer) sizes.row_bytes = sizes.row_words * 4;
  sizes.scale_rows = up(shape.rows, block_of(scheme.block_rows, shape.rows));
  sizes.scale_columns = up(shape.columns, block_of(scheme.block_columns, shape.columns));
  sizes.zero_rows = up(shape.rows * scheme.integer_bits, 32);
  sizes.zero_columns = sizes.scale_columns;
  sizes.code_rows = shape.rows;
  if (is_turned(scheme)) {
    sizes.zero_rows = sizes.scale_rows;
    sizes.zero_columns = up(sizes.scale_columns * scheme.integer_bits, 32);
  }
  if (scheme.order == quant::CodeOrder::rows) {
    sizes.row_bytes = shape.columns * 4;
    sizes.code_rows = up(shape.rows * scheme.integer_bits, 32);
  }
  if (scheme.order == quant::CodeOrder::row_pairs) {
    sizes.row_bytes = shape.columns;
    sizes.code_rows = shape.rows / 2;
  }
  return sizes;
}

double code_value(SlowWeight const& weight, Index row, Index column) {
  Sizes const sizes = sizes_of(weight.scheme, weight.shape);
  Index const row_start = row * sizes.row_bytes;
  auto const byte = [&](Index at) {
    return static_cast<std::uint32_t>(weight.codes[static_cast<std::size_t>(row_start + at)]);
  };
  Index const matrix = row / weight.shape.rows;
  Index const in_matrix = row % weight.shape.rows;
  int const bits = weight.scheme.integer_bits;
  if (weight.scheme.order == quant::CodeOrder::rows)
    return packed_at(weight.codes, matrix * sizes.code_rows * weight.shape.columns + column,
                     weight.shape.columns, in_matrix * bits, bits) -
           std::ldexp(1.0, bits - 1);
  if (weight.scheme.order == quant::CodeOrder::interleaved)
    return packed_at(weight.codes, row * sizes.row_words + column / 8, 1, 4 * place_in_word(column),
                     4) -
           8.0;
  if (weight.scheme.order == quant::CodeOrder::row_pairs) {
    Index const at = (matrix * sizes.code_rows + in_matrix / 2) * sizes.row_bytes + column;
    auto const both = static_cast<std::uint32_t>(weight.codes[static_cast<std::size_t>(at)]);
    std::uint32_t const code = in_matrix % 2 == 0 ? both & 15U : both >> 4U;
    if (weight.scheme.codes == quant::CodeFormat::e2m1) return slow_number(2, 1, code);
    return code < 8 ? code : code - 16.0;
  }
  switch (weight.scheme.codes) {
    case quant::CodeFormat::e4m3: return slow_e4m3(byte(column));
    case quant::CodeFormat::e5m2: return slow_ieee(5, 2, byte(column));
    case quant::CodeFormat::i8: return static_cast<std::int8_t>(byte(column));
    case quant::CodeFormat::e2m1:
      return slow_number(2, 1, column % 2 == 0 ? byte(column / 2) & 15U : byte(column / 2) >> 4U);
    case quant::CodeFormat::integer:
    case quant::CodeFormat::i4: break;
  }
  int const width = weight.scheme.integer_bits;
  return packed_at(weight.codes, row * sizes.row_words, 1, column * width, width) -
         std::ldexp(1.0, width - 1);
}

std::vector<std::byte> random_bytes(Index count, std::mt19937_64& random) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Numbers of a scale's dtype, mostly of moderate size and above zero.
std::vector<std::byte> random_scales(DType dtype, Index count, std::mt19937_64& random) {
  auto const size = static_cast<std::size_t>(bits(dtype) / 8);
  std::vector<std::byte> bytes = random_bytes(count * static_cast<Index>(size), random);
  for (std::size_t i = 0; i < bytes.size(); i += size) {
    if (random() % 40 == 0) continue;  // whatever it is
    std::uint32_t code = 0;
    std::memcpy(&code, &bytes[i], size);
    auto const exponent = static_cast<std::uint32_t>(100 + random() % 40);
    if (dtype == DType::f32) code = (code & 0x007fffffU) | exponent << 23U;
    if (dtype == DType::bf16) code = (code & 0x007fU) | exponent << 7U;
    if (dtype == DType::f16) code = (code & 0x03ffU) | exponent % 30 << 10U;
    if (dtype == DType::f8_e4m3) code &= 0x7fU;
    if (dtype == DType::u8 || dtype == DType::f8_e8m0) code = exponent;
    std::memcpy(&bytes[i], &code, size);
  }
  return bytes;
}

}  // namespace

double slow_number(int exponent_bits, int fraction_bits, std::uint32_t code) {
  int const bias = (1 << (exponent_bits - 1)) - 1;
  double const fraction =
      std::ldexp(static_cast<double>(code & ((1U << fraction_bits) - 1)), -fraction_bits);
  int const exponent = static_cast<int>((code >> fraction_bits) & ((1U << exponent_bits) - 1));
  double const size =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (code >> (exponent_bits + fraction_bits)) != 0 ? -size : size;
}

double slow_ieee(int exponent_bits, int fraction_bits, std::uint32_t code) {
  std::uint32_t const size = code & ((1U << (exponent_bits + fraction_bits)) - 1);
  std::uint32_t const infinity = ((1U << exponent_bits) - 1) << fraction_bits;
  if (size > infinity) return std::numeric_limits<double>::quiet_NaN();
  double const sign = size == code ? 1 : -1;
  return size == infinity ? sign * std::numeric_limits<double>::infinity()
                          : slow_number(exponent_bits, fraction_bits, code);
}

double slow_e4m3(std::uint32_t code) {
  return (code & 0x7fU) == 0x7fU ? std::numeric_limits<double>::quiet_NaN()
                                 : slow_number(4, 3, code);
}

double slow_e8m0(std::uint32_t code) {
  return code == 255 ? std::numeric_limits<double>::quiet_NaN()
                     : std::ldexp(1.0, static_cast<int>(code) - 127);
}

std::uint16_t slow_nearest(int exponent_bits, int fraction_bits, long double value) {
  std::uint32_t const infinity = ((1U << exponent_bits) - 1) << fraction_bits;
  std::uint32_t const sign = std::signbit(value) ? 0x8000U : 0;
  if (std::isnan(value))
    return static_cast<std::uint16_t>(sign | infinity | 1U << (fraction_bits - 1));
  // All values from zero on; where infinity stands is the number that would come next.
  static std::map<int, std::vector<double>> tables;
  std::vector<double>& table = tables[exponent_bits];
  for (auto code = static_cast<std::uint32_t>(table.size()); code <= infinity; ++code)
    table.push_back(slow_number(exponent_bits, fraction_bits, code));
  long double const size = std::fabs(value);
  auto const above =
      std::lower_bound(table.begin(), table.end(), size,
                       [](double a, long double b) { return static_cast<long double>(a) < b; });
  if (above == table.end()) return static_cast<std::uint16_t>(sign | infinity);
  auto const code = static_cast<std::uint32_t>(above - table.begin());
  if (code == 0) return static_cast<std::uint16_t>(sign);
  long double const to_above = static_cast<long double>(*above) - size;
  long double const to_below = size - static_cast<long double>(table[code - 1]);
  bool const take_below = to_below < to_above || (to_below == to_above && (code - 1) % 2 == 0);
  return static_cast<std::uint16_t>(sign | (take_below ? code - 1 : code));
}

std::vector<QuantForm> quant_forms() {
  using quant::CodeFormat;
  using quant::SecondScale;
  std::vector<QuantForm> all{
      {"block FP8, F32",
       {.codes = CodeFormat::e4m3, .block_rows = 128, .block_columns = 128},
       {.scale = DType::f32}},
      {"block FP8, E8M0",
       {.codes = CodeFormat::e4m3, .block_rows = 16, .block_columns = 24},
       {.scale = DType::f8_e8m0}},
      {"block FP8, BF16",
       {.codes = CodeFormat::e4m3, .block_rows = 3, .block_columns = 5},
       {.scale = DType::bf16}},
      {"block E5M2",
       {.codes = CodeFormat::e5m2, .block_rows = 4, .block_columns = 32},
       {.scale = DType::f16}},
      {"FP8 per tensor",
       {.codes = CodeFormat::e4m3, .block_rows = 0, .block_columns = 0},
       {.scale = DType::f32}},
      {"FP8 per channel",
       {.codes = CodeFormat::e4m3, .block_rows = 1, .block_columns = 0},
       {.scale = DType::bf16}},
      {"NVFP4, ModelOpt",
       {.codes = CodeFormat::e2m1,
        .block_rows = 1,
        .block_columns = 16,
        .second = SecondScale::times},
       {.scale = DType::f8_e4m3}},
      {"NVFP4, compressed-tensors",
       {.codes = CodeFormat::e2m1,
        .block_rows = 1,
        .block_columns = 16,
        .second = SecondScale::divided_by},
       {.scale = DType::f8_e4m3}},
      {"MXFP4",
       {.codes = CodeFormat::e2m1, .block_rows = 1, .block_columns = 32},
       {.scale = DType::u8}},
      {"MXFP8",
       {.codes = CodeFormat::e4m3, .block_rows = 1, .block_columns = 32},
       {.scale = DType::f8_e8m0}},
      {"int8 per channel",
       {.codes = CodeFormat::i8, .block_rows = 1, .block_columns = 0},
       {.scale = DType::f32}},
      {"int8 with zero points",
       {.codes = CodeFormat::i8, .block_rows = 1, .block_columns = 8},
       {.scale = DType::f16, .zero_points = DType::i8}},
  };
  for (int const width : {4, 8, 3, 1, 5, 7}) {
    quant::Scheme const scheme{
        .codes = CodeFormat::integer, .integer_bits = width, .block_rows = 1, .block_columns = 32};
    all.push_back({"packed integers", scheme, {.scale = DType::bf16}});
    all.push_back({"packed integers with zero points",
                   scheme,
                   {.scale = DType::f32, .zero_points = DType::i32}});
  }
  return all;
}

std::vector<QuantForm> column_forms() {
  using quant::CodeFormat;
  using quant::CodeOrder;
  std::vector<QuantForm> all{
      {"AWQ",
       {.codes = CodeFormat::integer, .block_rows = 16, .order = CodeOrder::interleaved},
       {.scale = DType::f16, .zero_points = DType::i32}},
      {"integers of ModelOpt",
       {.codes = CodeFormat::i4, .block_columns = 32, .order = CodeOrder::row_pairs},
       {.scale = DType::f32, .factors = DType::bf16}},
      {"W4A8 of ModelOpt",
       {.codes = CodeFormat::i4,
        .block_columns = 8,
        .second = quant::SecondScale::times,
        .order = CodeOrder::row_pairs},
       {.scale = DType::f32}},
      {"NVFP4 down the rows",
       {.codes = CodeFormat::e2m1,
        .block_rows = 16,
        .second = quant::SecondScale::times,
        .order = CodeOrder::row_pairs},
       {.scale = DType::f8_e4m3}},
      {"NVFP4 with factors",
       {.codes = CodeFormat::e2m1, .block_columns = 16, .second = quant::SecondScale::divided_by},
       {.scale = DType::f8_e4m3, .factors = DType::f16}},
      {"int8 with factors",
       {.codes = CodeFormat::i8, .block_columns = 0},
       {.scale = DType::f32, .zero_points = DType::i8, .factors = DType::f32}},
      {"int8 of bitsandbytes",
       {.codes = CodeFormat::i8, .block_columns = 0, .divisor = 127},
       {.scale = DType::f32}},
  };
  for (int const width : {2, 3, 4, 8})
    for (bool const groups : {false, true}) {
      quant::Scheme gptq{.codes = CodeFormat::integer,
                         .integer_bits = width,
                         .block_rows = 16,
                         .order = CodeOrder::rows,
                         .zero_offset = groups ? 1 : 0};
      all.push_back(
          {"GPTQ", gptq, {.scale = DType::f16, .zero_points = DType::i32, .groups = groups}});
      gptq.order = CodeOrder::columns;
      gptq.block_rows = 1;
      gptq.block_columns = 8;
      gptq.zero_offset = 0;
      if (groups)
        all.push_back({"groups of columns",
                       gptq,
                       {.scale = DType::bf16, .zero_points = DType::i32, .groups = true}});
    }
  return all;
}

SlowWeight random_weight(quant::Scheme const& scheme, quant::MatrixShape const& shape,
                         quant::Companions const& companions, std::mt19937_64& random) {
  Sizes const sizes = sizes_of(scheme, shape);
  SlowWeight weight{scheme, shape, companions, {}, {}, {}, {}};
  Index const scales = shape.stack * sizes.scale_rows * sizes.scale_columns;
  weight.codes = random_bytes(shape.stack * sizes.code_rows * sizes.row_bytes, random);
  weight.scales = random_scales(companions.scale, scales, random);
  if (scheme.second != quant::SecondScale::none)
    weight.seconds = random_scales(companions.second, companions.seconds, random);
  if (companions.zero_points == DType::i8) weight.zero_points = random_bytes(scales, random);
  if (companions.zero_points == DType::i32)
    weight.zero_points =
        random_bytes(shape.stack * sizes.zero_rows * sizes.zero_columns * 4, random);
  if (companions.groups) {
    Index const blocks = is_turned(scheme) ? sizes.scale_rows : sizes.scale_columns;
    for (Index i = 0; i < (is_turned(scheme) ? shape.rows : shape.columns); ++i) {
      auto const group = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(blocks));
      auto const bytes = std::as_bytes(std::span(&group, 1));
      weight.groups.insert(weight.groups.end(), bytes.begin(), bytes.end());
    }
  }
  if (companions.factors)
    weight.factors = random_scales(*companions.factors, shape.columns, random);
  return weight;
}

std::uint16_t slow_element(SlowWeight const& weight, Index row, Index column) {
  Sizes const sizes = sizes_of(weight.scheme, weight.shape);
  Index const matrix = row / weight.shape.rows;
  Index const row_here = row % weight.shape.rows;
  Index block_row = row_here / block_of(weight.scheme.block_rows, weight.shape.rows);
  Index block_column = column / block_of(weight.scheme.block_columns, weight.shape.columns);
  bool const turned = is_turned(weight.scheme);
  if (weight.companions.groups)
    (turned ? block_row : block_column) = word_at(weight.groups, turned ? row_here : column);
  Index const scale_at =
      (matrix * sizes.scale_rows + block_row) * sizes.scale_columns + block_column;
  double zero = 0;
  int const width = weight.scheme.integer_bits;
  if (weight.companions.zero_points == DType::i8)
    zero = number_of(DType::i8, weight.zero_points, scale_at);
  if (weight.companions.zero_points == DType::i32 && turned) {
    Index const at = (matrix * sizes.zero_rows + block_row) * sizes.zero_columns;
    std::uint32_t const code =
        weight.scheme.order == quant::CodeOrder::interleaved
            ? packed_at(weight.zero_points, at + block_column / 8, 1,
                        4 * place_in_word(block_column), 4)
            : packed_at(weight.zero_points, at, 1, block_column * width, width);
    auto const offset = static_cast<std::uint32_t>(weight.scheme.zero_offset);
    zero = (code + offset) % (1U << static_cast<unsigned>(width)) - std::ldexp(1.0, width - 1);
  } else if (weight.companions.zero_points == DType::i32) {
    zero =
        packed_at(weight.zero_points, matrix * sizes.zero_rows * sizes.scale_columns + block_column,
                  sizes.scale_columns, row_here * width, width) -
        std::ldexp(1.0, width - 1);
  }
  // Each step is a number of F32; long double holds more than twice its digits.
  auto const rounded = [](long double exact) { return static_cast<float>(exact); };
  auto scale = static_cast<float>(number_of(weight.companions.scale, weight.scales, scale_at));
  Index const second_at = weight.companions.seconds == 1 ? 0 : matrix;
  if (weight.scheme.second != quant::SecondScale::none) {
    auto const second =
        static_cast<long double>(number_of(weight.companions.second, weight.seconds, second_at));
    auto const first = static_cast<long double>(scale);
    scale = rounded(weight.scheme.second == quant::SecondScale::times ? first * second
                                                                      : first / second);
  }
  float value = rounded(static_cast<long double>(code_value(weight, row, column) - zero) *
                        static_cast<long double>(scale));
  if (weight.companions.factors)
    value = rounded(
        static_cast<long double>(value) *
        static_cast<long double>(number_of(*weight.companions.factors, weight.factors, column)));
  value = rounded(static_cast<long double>(value) *
                  static_cast<long double>(static_cast<float>(1.0 / weight.scheme.divisor)));
  return slow_nearest(8, 7, static_cast<long double>(value));
}

std::vector<std::uint16_t> slow_elements(SlowWeight const& weight) {
  std::vector<std::uint16_t> all;
  for (Index row = 0; row < weight.shape.stack * weight.shape.rows; ++row)
    for (Index column = 0; column < weight.shape.columns; ++column)
      all.push_back(slow_element(weight, row, column));
  return all;
}

}  // namespace reshard
