#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/dtype.hpp"
#include "core/base/host_device.hpp"
#include "core/base/range.hpp"
#include "core/quant/number_formats.hpp"

// The arithmetic of quantised weights, for the host and for kernels alike: plain numbers, no memory
// of its own.
namespace reshard::quant {

/// [begin, end) of a tensor in row-major order.
using FlatRange = HalfOpen<std::int64_t>;

/// How one code of a quantised weight is stored.
enum class CodeFormat : std::uint8_t {
  e4m3,     ///< one per byte
  e5m2,     ///< one per byte
  i8,       ///< one per byte, two's complement
  e2m1,     ///< two per byte, the even column in the low half
  integer,  ///< `integer_bits` each, one after the other from the lowest bit of a row's first
            ///< 32-bit word; means code - 2^(integer_bits - 1)
  i4,       ///< two per byte, two's complement
};

/// Where the codes of a matrix lie.
enum class CodeOrder : std::uint8_t {
  columns,      ///< along the rows, as CodeFormat says
  interleaved,  ///< along the rows; a 32-bit word has columns 0, 2, 4, 6, 1, 3, 5, 7 from its
                ///< lowest bits on (AWQ)
  rows,         ///< down the rows: 32-bit words of one column, from the lowest bit on (GPTQ)
  row_pairs,    ///< two rows in a byte, the even one in the low half (ModelOpt)
};

/// Use of the second scale, a number for a whole matrix.
enum class SecondScale : std::uint8_t {
  none,
  times,       ///< scale * second
  divided_by,  ///< scale / second
};

enum class ZeroPoints : std::uint8_t {
  none,
  bytes,   ///< one I8 beside each scale
  packed,  ///< in 32-bit words as codes are, but along the rows of each matrix
  along,   ///< in 32-bit words along the columns of the scales
};

/// Elements of a tensor from number `begin` on.
struct TensorPart {
  std::byte const* bytes = nullptr;
  std::int64_t begin = 0;
};

/// The stored tensors of a quantised weight, as far as they are there; the codes' elements are
/// bytes.
struct StoredParts {
  TensorPart codes;
  TensorPart scales;
  TensorPart seconds;
  TensorPart zero_points;
  TensorPart groups;
  TensorPart factors;
};

/// Factors of the values of one block: (code - zero) * scale. Both are numbers of F32.
struct Factors {
  double scale = 1;
  double zero = 0;
};

/// The part of a stack that is computed in one go: several whole rows, or some columns of one row.
/// At least one element.
struct RowPart {
  std::int64_t first_row = 0;
  std::int64_t rows = 1;
  std::int64_t first_column = 0;
  std::int64_t columns = 0;
};

/// Ranges of the stored tensors that a part needs: bytes of the codes, elements of the others.
struct Needs {
  FlatRange code_bytes;
  FlatRange scales;
  FlatRange seconds;      ///< empty without a second scale
  FlatRange zero_points;  ///< empty without zero points
  FlatRange groups;       ///< empty without groups: all of them
  FlatRange factors;      ///< empty without factors of columns
};

/// The bytes that a Needs names. They may lie at any address.
struct StoredBytes {
  std::span<std::byte const> codes;
  std::span<std::byte const> scales;
  std::span<std::byte const> seconds;
  std::span<std::byte const> zero_points;
  std::span<std::byte const> groups;
  std::span<std::byte const> factors;
};

/// Where codes, scales and zero points of a stack of matrices are, and how they are stored. Rows
/// count through the stack.
struct CodeGrid {
  std::int64_t rows = 0;  ///< of one matrix
  std::int64_t columns = 0;
  std::int64_t row_bytes = 0;  ///< of codes
  std::int64_t block_rows = 1;
  std::int64_t block_columns = 1;
  std::int64_t scale_rows = 0;  ///< of one matrix
  std::int64_t scale_columns = 0;
  std::int64_t zero_rows = 0;  ///< rows of words of one matrix
  std::int64_t zero_columns = 0;
  std::int32_t bits = 8;  ///< of a code
  CodeFormat codes = CodeFormat::e4m3;
  CodeOrder order = CodeOrder::columns;
  SecondScale second = SecondScale::none;
  ZeroPoints zero_points = ZeroPoints::none;
  DType scale_dtype = DType::f32;
  DType second_dtype = DType::f32;
  bool second_of_each_matrix = false;
};

inline constexpr std::int64_t zero_word_bits = 32;

/// Whether the stored matrix has a row for each column of the weight.
constexpr bool is_transposed(CodeOrder order) {
  return order == CodeOrder::interleaved || order == CodeOrder::rows;
}

/// The row of codes, row_bytes each, in which the codes of a row begin.
constexpr std::int64_t code_row(CodeGrid const& grid, std::int64_t row) {
  if (grid.order == CodeOrder::rows) return row * grid.bits / zero_word_bits;
  return grid.order == CodeOrder::row_pairs ? row / 2 : row;
}

/// And in which they end.
constexpr std::int64_t last_code_row(CodeGrid const& grid, std::int64_t row) {
  if (grid.order == CodeOrder::rows) return ((row + 1) * grid.bits - 1) / zero_word_bits;
  return code_row(grid, row);
}

constexpr bool are_integers(CodeFormat codes) {
  return codes == CodeFormat::i8 || codes == CodeFormat::integer || codes == CodeFormat::i4;
}

/// The number that a code means, without zero points and scales.
constexpr double value_of_code(CodeFormat codes, int bits, std::uint8_t code) {
  switch (codes) {
    case CodeFormat::e4m3: return decode(formats::e4m3, code);
    case CodeFormat::e5m2: return decode(formats::e5m2, code);
    case CodeFormat::e2m1: return decode(formats::e2m1, code);
    case CodeFormat::i8: return static_cast<std::int8_t>(code);
    case CodeFormat::integer: return code - (1 << (bits - 1));
    case CodeFormat::i4: return (code ^ 8) - 8;
  }
  return 0;
}

namespace detail {

// Processors do not agree on the NaN that an operation returns. Here it is the first operand that
// is one, made quiet, and where numbers make a NaN (0 * infinity) it is a negative one without
// payload: what x86 does.
constexpr double quiet(double nan) {
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(nan) | std::uint64_t{1} << 51U);
}

constexpr double result_or_nan(double result, double a, double b) {
  if (result == result) return result;
  if (a != a) return quiet(a);
  if (b != b) return quiet(b);
  return std::bit_cast<double>(std::uint64_t{0xfff8} << 48U);
}

/// The nearest number of F32. Products and quotients of such numbers are rounded as F32 arithmetic
/// rounds them: a double has more than twice the digits.
constexpr double as_f32(double value) {
  return value == value ? static_cast<double>(static_cast<float>(value)) : value;
}

constexpr double product(double a, double b) { return as_f32(result_or_nan(a * b, a, b)); }

constexpr double quotient(double a, double b) { return as_f32(result_or_nan(a / b, a, b)); }

/// A result that is not a number, once more and step by step.
constexpr double which_nan(double value, Factors const& factors) {
  return product(result_or_nan(value - factors.zero, value, factors.zero), factors.scale);
}

template <class Code>
RESHARD_HOST_DEVICE inline std::uint64_t load(std::byte const* at) {
  Code code{};
  std::memcpy(&code, at, sizeof code);
  return code;
}

}  // namespace detail

/// The BF16 code of a code that means `value`: the product in F32, rounded to nearest even. A
/// NaN is the same on every processor.
[[gnu::always_inline]] constexpr std::uint16_t dequantised(double value, Factors const& factors) {
  double const scaled = (value - factors.zero) * factors.scale;
  return static_cast<std::uint16_t>(encode(formats::bf16, scaled == scaled
                                                              ? detail::as_f32(scaled)
                                                              : detail::which_nan(value, factors))
                                        .code);
}

/// Element `at` of a part of a tensor of scales.
RESHARD_HOST_DEVICE inline double number_at(DType dtype, TensorPart const& part, std::int64_t at) {
  std::int64_t const element = at - part.begin;
  switch (dtype) {
    case DType::f32:
      return decode(formats::f32, detail::load<std::uint32_t>(part.bytes + 4 * element));
    case DType::bf16:
      return decode(formats::bf16, detail::load<std::uint16_t>(part.bytes + 2 * element));
    case DType::f16:
      return decode(formats::f16, detail::load<std::uint16_t>(part.bytes + 2 * element));
    case DType::f8_e4m3:
      return decode(formats::e4m3, detail::load<std::uint8_t>(part.bytes + element));
    case DType::f8_e5m2:
      return decode(formats::e5m2, detail::load<std::uint8_t>(part.bytes + element));
    case DType::i8: return static_cast<std::int8_t>(part.bytes[element]);
    default: return decode_e8m0(static_cast<std::uint8_t>(part.bytes[element]));
  }
}

/// The scale of an element, and the byte zero point beside it.
RESHARD_HOST_DEVICE inline std::int64_t scale_index(CodeGrid const& grid, std::int64_t row,
                                                    std::int64_t column) {
  return (row / grid.rows * grid.scale_rows + row % grid.rows / grid.block_rows) *
             grid.scale_columns +
         column / grid.block_columns;
}

RESHARD_HOST_DEVICE inline std::int64_t second_index(CodeGrid const& grid, std::int64_t row) {
  return grid.second_of_each_matrix ? row / grid.rows : 0;
}

/// The first and the last word that hold the packed zero point of an element.
RESHARD_HOST_DEVICE inline FlatRange zero_words(CodeGrid const& grid, std::int64_t row,
                                                std::int64_t column) {
  std::int64_t const first_bit = row % grid.rows * grid.bits;
  std::int64_t const before = row / grid.rows * grid.zero_rows;
  std::int64_t const block = column / grid.block_columns;
  return {(before + first_bit / zero_word_bits) * grid.scale_columns + block,
          (before + (first_bit + grid.bits - 1) / zero_word_bits) * grid.scale_columns + block};
}

RESHARD_HOST_DEVICE inline double packed_zero_point(CodeGrid const& grid, StoredParts const& stored,
                                                    std::int64_t row, std::int64_t column) {
  FlatRange const words = zero_words(grid, row, column);
  std::uint64_t const low = detail::load<std::uint32_t>(
      stored.zero_points.bytes + 4 * (words.begin - stored.zero_points.begin));
  std::uint64_t const high = detail::load<std::uint32_t>(
      stored.zero_points.bytes + 4 * (words.end - stored.zero_points.begin));
  auto const first_bit = static_cast<unsigned>(row % grid.rows * grid.bits % zero_word_bits);
  std::uint64_t const code = ((low | high << 32U) >> first_bit) & detail::ones(grid.bits);
  return value_of_code(grid.codes, grid.bits, static_cast<std::uint8_t>(code));
}

/// The factors of the block that an element lies in; `scale` is scale_index() of it.
RESHARD_HOST_DEVICE inline Factors factors_of(CodeGrid const& grid, StoredParts const& stored,
                                              std::int64_t row, std::int64_t column,
                                              std::int64_t scale) {
  Factors factors;
  factors.scale = number_at(grid.scale_dtype, stored.scales, scale);
  if (grid.zero_points == ZeroPoints::bytes)
    factors.zero = number_at(DType::i8, stored.zero_points, scale);
  if (grid.zero_points == ZeroPoints::packed)
    factors.zero = packed_zero_point(grid, stored, row, column);
  if (grid.second == SecondScale::none) return factors;
  double const second = number_at(grid.second_dtype, stored.seconds, second_index(grid, row));
  factors.scale = grid.second == SecondScale::times ? detail::product(factors.scale, second)
                                                    : detail::quotient(factors.scale, second);
  return factors;
}

}  // namespace reshard::quant
