#include "core/quant/column_decoder.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/quant/short_floats.hpp"
#include "core/quant/unpack_codes.hpp"
#include "core/quant/wide_vectors.hpp"

namespace reshard::quant {
namespace {

using Number = std::int64_t;

std::uint32_t word_at(std::byte const* bytes, Number word) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes + 4 * word, sizeof value);
  return value;
}

/// BF16 of a number of F32.
[[gnu::always_inline]] inline std::uint16_t bf16_of(float number) {
  auto const bits = std::bit_cast<std::uint32_t>(number);
  std::uint32_t const rounded = (bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U;
  std::uint32_t const quiet = bits >> 16U | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

/// The number of a code of E2M1.
[[gnu::always_inline]] inline float number_of_e2m1(std::uint8_t code) {
  std::uint32_t const size = code & 7U;
  std::uint32_t const fraction = size & 1U;
  // Twice the number is an integer.
  std::uint32_t const twice = size < 2 ? size : (2U | fraction) << (((size >> 1U) - 1U) & 3U);
  float const number = static_cast<float>(static_cast<int>(twice)) * 0.5F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(number) | std::uint32_t{code & 8U}
                                                                         << 28U);
}

}  // namespace

ColumnDecoder::ColumnDecoder(CodeGrid const& grid, Scheme const& scheme,
                             Companions const& companions)
    : grid_(grid),
      groups_(companions.groups),
      has_factors_(companions.factors.has_value()),
      factor_dtype_(companions.factors.value_or(DType::f32)),
      zero_offset_(scheme.zero_offset),
      last_(static_cast<float>(1.0 / scheme.divisor)) {
  for (std::size_t code = 0; code < std::size_t{1} << static_cast<unsigned>(grid_.bits); ++code)
    numbers_[code] =
        static_cast<float>(value_of_code(grid_.codes, grid_.bits, static_cast<std::uint8_t>(code)));
}

Needs ColumnDecoder::needs_of(RowPart const& part) const {
  Number const last_row = part.first_row + part.rows - 1;
  Number const last_column = part.first_column + part.columns - 1;
  bool const down = grid_.order == CodeOrder::rows || grid_.order == CodeOrder::row_pairs;
  Number const first = part.first_column;
  // Bytes of the first and last column: of one word for each, of some columns in a word, or of
  // codes one after the other.
  Number const width = grid_.order == CodeOrder::rows ? 4 : 1;
  Number from = first * width;
  Number to = (last_column + 1) * width;
  if (grid_.order == CodeOrder::interleaved) {
    from = first / 8 * 4;
    to = (last_column / 8 + 1) * 4;
  } else if (!down) {
    from = first * grid_.bits / 8;
    to = ((last_column + 1) * grid_.bits + 7) / 8;
  }
  Needs needs;
  needs.code_bytes = {code_row(grid_, part.first_row) * grid_.row_bytes + from,
                      last_code_row(grid_, last_row) * grid_.row_bytes + to};
  Number const first_matrix = part.first_row / grid_.rows;
  Number const last_matrix = last_row / grid_.rows;
  Number const of_matrix = grid_.scale_rows * grid_.scale_columns;
  needs.scales = {scale_index(grid_, part.first_row, first),
                  scale_index(grid_, last_row, last_column) + 1};
  if (groups_) needs.scales = {first_matrix * of_matrix, (last_matrix + 1) * of_matrix};
  if (grid_.second != SecondScale::none)
    needs.seconds = {second_index(grid_, part.first_row), second_index(grid_, last_row) + 1};
  if (grid_.zero_points == ZeroPoints::bytes)
    needs.zero_points = needs.scales;
  else if (grid_.zero_points != ZeroPoints::none)
    needs.zero_points = {first_matrix * grid_.zero_rows * grid_.zero_columns,
                         (last_matrix + 1) * grid_.zero_rows * grid_.zero_columns};
  if (groups_) needs.groups = {0, is_transposed(grid_.order) ? grid_.rows : grid_.columns};
  if (has_factors_) needs.factors = {first, last_column + 1};
  return needs;
}

/// Codes of a row, one in each byte.
[[gnu::always_inline]] inline std::uint8_t const* ColumnDecoder::take_codes(Number row,
                                                                            RowPart const& part,
                                                                            TensorPart const& codes,
                                                                            std::size_t bytes) {
  Number const columns = part.columns;
  Number const first = part.first_column;
  Number const begin = code_row(grid_, row) * grid_.row_bytes - codes.begin;
  std::byte const* const at = codes.bytes + begin;
  std::uint8_t* const into = codes_.data();
  switch (grid_.order) {
    case CodeOrder::rows: {
      auto const bit = static_cast<unsigned>(row * grid_.bits % zero_word_bits);
      Number const further = last_code_row(grid_, row) - code_row(grid_, row);
      unpack_across(at + 4 * first, at + further * grid_.row_bytes + 4 * first, bit, grid_.bits,
                    columns, into);
      return into;
    }
    case CodeOrder::row_pairs: {
      auto const* const pairs = reinterpret_cast<std::uint8_t const*>(at) + first;
      unsigned const shift = row % 2 == 0 ? 0 : 4;
      for (Number c = 0; c < columns; ++c)
        into[c] = static_cast<std::uint8_t>(pairs[c] >> shift & 15U);
      return into;
    }
    case CodeOrder::interleaved: {
      Number const skipped = first % 8;
      unpack_interleaved(at + first / 8 * 4, (skipped + columns + 7) / 8, into);
      return into + skipped;
    }
    case CodeOrder::columns: break;
  }
  if (grid_.bits == 8) return reinterpret_cast<std::uint8_t const*>(at) + first;
  unpack({codes.bytes, bytes}, grid_.bits, begin * 8 + first * grid_.bits, columns, into);
  return into;
}

/// Scales from element `first` on, times or divided by the second one.
[[gnu::always_inline]] inline void ColumnDecoder::take_scales(Number first, Number count,
                                                              double second,
                                                              TensorPart const& scales) {
  float* __restrict__ const to = block_scales_.data();
  int const size = bits(grid_.scale_dtype) / 8;
  std::byte const* const from = scales.bytes + (first - scales.begin) * size;
  auto const both = [&](double scale) {
    if (grid_.second == SecondScale::none) return static_cast<float>(scale);
    return static_cast<float>(grid_.second == SecondScale::times ? detail::product(scale, second)
                                                                 : detail::quotient(scale, second));
  };
  if (size == 1) {
    if (second_ != std::bit_cast<std::uint64_t>(second)) {
      second_ = std::bit_cast<std::uint64_t>(second);
      for (std::size_t code = 0; code < short_scales_.size(); ++code) {
        auto const byte = static_cast<std::byte>(code);
        short_scales_[code] = both(number_at(grid_.scale_dtype, {&byte, 0}, 0));
      }
    }
    float const* const table = short_scales_.data();
    for (Number i = 0; i < count; ++i) to[i] = table[std::to_integer<std::uint8_t>(from[i])];
    return;
  }
  auto const each = [&](auto code, auto const& wide) {
    for (Number i = 0; i < count; ++i) {
      std::memcpy(&code, from + i * static_cast<Number>(sizeof code), sizeof code);
      to[i] = std::bit_cast<float>(std::uint32_t{wide(code)});
    }
  };
  if (grid_.scale_dtype == DType::f32)
    each(std::uint32_t{}, [](std::uint32_t code) { return code; });
  else if (grid_.scale_dtype == DType::bf16)
    each(std::uint16_t{}, [](std::uint16_t code) { return f32_of_bf16(code); });
  else
    each(std::uint16_t{}, [](std::uint16_t code) { return f32_of_f16(code); });
  if (grid_.second == SecondScale::none) return;
  for (Number i = 0; i < count; ++i) to[i] = both(static_cast<double>(to[i]));
}

/// Zero points of a row's blocks `first` and the following; `scale_row` is that of their scales.
[[gnu::always_inline]] inline void ColumnDecoder::take_zeros(Number row, Number scale_row,
                                                             Number first, Number count,
                                                             StoredParts const& stored) {
  float* __restrict__ const to = block_zeros_.data();
  TensorPart const& zeros = stored.zero_points;
  if (grid_.zero_points == ZeroPoints::none) return;
  if (grid_.zero_points == ZeroPoints::bytes) {
    auto const* const from = reinterpret_cast<std::int8_t const*>(zeros.bytes) +
                             scale_row * grid_.scale_columns + first - zeros.begin;
    for (Number i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
    return;
  }
  std::uint8_t* into = codes_.data();
  if (grid_.zero_points == ZeroPoints::packed) {
    Number const bit = row % grid_.rows * grid_.bits;
    auto const words = [&](Number word) {
      Number const at =
          (row / grid_.rows * grid_.zero_rows + word) * grid_.zero_columns + first - zeros.begin;
      return zeros.bytes + 4 * at;
    };
    unpack_across(words(bit / zero_word_bits), words((bit + grid_.bits - 1) / zero_word_bits),
                  static_cast<unsigned>(bit % zero_word_bits), grid_.bits, count, into);
  } else {
    std::byte const* const words = zeros.bytes + 4 * (scale_row * grid_.zero_columns - zeros.begin);
    if (grid_.order == CodeOrder::interleaved) {
      unpack_interleaved(words + first / 8 * 4, (first % 8 + count + 7) / 8, into);
      into += first % 8;
    } else {
      unpack({words, static_cast<std::size_t>(4 * grid_.zero_columns)}, grid_.bits,
             first * grid_.bits, count, into);
    }
  }
  int const mask = static_cast<int>(detail::ones(grid_.bits));
  int const half = 1 << (grid_.bits - 1);
  int const offset = zero_offset_;
  std::uint8_t const* const codes = into;
  for (Number i = 0; i < count; ++i)
    to[i] = static_cast<float>(((codes[i] + offset) & mask) - half);
}

/// Scales and zero points of a row's columns.
[[gnu::always_inline]] inline void ColumnDecoder::take_factors(Number row, RowPart const& part,
                                                               StoredParts const& stored) {
  auto const group = [&](Number at) {
    return static_cast<Number>(
        static_cast<std::int32_t>(word_at(stored.groups.bytes, at - stored.groups.begin)));
  };
  bool const by_row = groups_ && is_transposed(grid_.order);
  bool const by_column = groups_ && !by_row;
  Number const in_matrix = row % grid_.rows;
  Number const block_row = by_row ? group(in_matrix) : in_matrix / grid_.block_rows;
  Number const scale_row = row / grid_.rows * grid_.scale_rows + block_row;
  Number const end = part.first_column + part.columns;
  Number const first = by_column ? 0 : part.first_column / grid_.block_columns;
  Number const last = by_column ? grid_.scale_columns - 1 : (end - 1) / grid_.block_columns;
  double const second =
      grid_.second == SecondScale::none
          ? 1
          : number_at(grid_.second_dtype, stored.seconds, second_index(grid_, row));
  take_scales(scale_row * grid_.scale_columns + first, last - first + 1, second, stored.scales);
  take_zeros(row, scale_row, first, last - first + 1, stored);
  if (grid_.block_columns == 1 && !by_column) {
    std::swap(scales_, block_scales_);
    std::swap(zeros_, block_zeros_);
    return;
  }
  auto const spread = [&](std::vector<float> const& of_blocks, std::vector<float>& of_columns) {
    float const* const from = of_blocks.data();
    float* __restrict__ const to = of_columns.data();
    if (by_column) {
      for (Number c = 0; c < part.columns; ++c) to[c] = from[group(part.first_column + c)];
      return;
    }
    constexpr Number vector = 16;
    Number c = 0;
    for (Number block = first; block <= last; ++block) {
      Number const block_end = std::min(end, (block + 1) * grid_.block_columns) - part.first_column;
      float const one = from[block - first];
      for (; c + vector <= block_end; c += vector)
        for (Number k = 0; k < vector; ++k) to[c + k] = one;
      for (; c < block_end; ++c) to[c] = one;
    }
  };
  spread(block_scales_, scales_);
  if (grid_.zero_points != ZeroPoints::none) spread(block_zeros_, zeros_);
}

/// The numbers of codes, without zero points and scales.
[[gnu::always_inline]] inline void ColumnDecoder::put_numbers(
    std::uint8_t const* __restrict__ codes, Number count, float* __restrict__ to) const {
  if (are_integers(grid_.codes)) {
    int const half = 1 << (grid_.bits - 1);
    int const flip = grid_.codes == CodeFormat::integer ? 0 : half;
    for (Number c = 0; c < count; ++c) to[c] = static_cast<float>((codes[c] ^ flip) - half);
  } else if (grid_.codes == CodeFormat::e2m1) {
    for (Number c = 0; c < count; ++c) to[c] = number_of_e2m1(codes[c]);
  } else {
    for (Number c = 0; c < count; ++c) to[c] = numbers_[codes[c]];
  }
}

[[gnu::always_inline]] inline void ColumnDecoder::put_row(std::uint8_t const* codes, Number columns,
                                                          std::byte* to) const {
  // Simple loops, of what a first-level cache holds, become vectors.
  constexpr Number stretch = 512;
  std::array<float, stretch> held;
  float* const values = held.data();
  for (Number begin = 0; begin < columns; begin += stretch) {
    Number const count = std::min(stretch, columns - begin);
    put_numbers(codes + begin, count, values);
    float const* const zeros = zeros_.data() + begin;
    float const* const scales = scales_.data() + begin;
    float const* const factors = factors_.data() + begin;
    float const last = last_;
    auto const put = [=, into = to + 2 * begin](auto const& finished) {
      for (Number c = 0; c < count; ++c) {
        float const scaled = (values[c] - zeros[c]) * scales[c];
        std::uint16_t const element = bf16_of(finished(scaled, c) * last);
        std::memcpy(into + 2 * c, &element, sizeof element);
      }
    };
    if (has_factors_)
      put([=](float value, Number c) { return value * factors[c]; });
    else
      put([](float value, Number) { return value; });
  }
}

void ColumnDecoder::run(RowPart const& part, StoredParts const& stored, std::byte* to) {
  auto const columns = static_cast<std::size_t>(part.columns);
  auto const blocks =
      std::max(columns, groups_ ? static_cast<std::size_t>(grid_.scale_columns) : 0);
  constexpr std::size_t word_codes = 16;  // of the first and of the last word, at most
  codes_.resize(blocks + word_codes);
  for (std::vector<float>* const each : {&block_scales_, &block_zeros_, &scales_, &zeros_})
    each->resize(blocks);
  factors_.resize(has_factors_ ? columns : 0);
  for (std::size_t c = 0; c < factors_.size(); ++c)
    factors_[c] = static_cast<float>(
        number_at(factor_dtype_, stored.factors, part.first_column + static_cast<Number>(c)));
  bool const changes = grid_.block_rows == 1 || groups_ || grid_.zero_points == ZeroPoints::packed;
  FlatRange const held = needs_of(part).code_bytes;
  auto const bytes = static_cast<std::size_t>(held.end - held.begin);
  with_wide_vectors([&] {
    for (Number row = part.first_row; row < part.first_row + part.rows; ++row) {
      if (row == part.first_row || changes || row % grid_.rows % grid_.block_rows == 0)
        take_factors(row, part, stored);
      put_row(take_codes(row, part, stored.codes, bytes), part.columns, to);
      to += 2 * part.columns;
    }
  });
}

}  // namespace reshard::quant
