#include "core/quant/column_decoder.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/quant/wide_vectors.hpp"

namespace reshard::quant {
namespace {

using Number = std::int64_t;

/// The place in a word, in codes, of each of eight columns.
constexpr std::array<unsigned, 8> interleaved_places{0, 4, 1, 5, 2, 6, 3, 7};

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

/// Codes of a row, one in each byte of codes_.
[[gnu::always_inline]] inline void ColumnDecoder::take_codes(Number row, RowPart const& part,
                                                             TensorPart const& codes) {
  Number const columns = part.columns;
  std::uint8_t* const into = codes_.data();
  std::byte const* const at = codes.bytes + code_row(grid_, row) * grid_.row_bytes - codes.begin;
  std::uint32_t const mask = (1U << static_cast<unsigned>(grid_.bits)) - 1;
  if (grid_.order == CodeOrder::rows) {
    std::byte const* const words = at + 4 * part.first_column;
    auto const shift = static_cast<unsigned>(row * grid_.bits % zero_word_bits);
    for (Number c = 0; c < columns; ++c)
      into[c] = static_cast<std::uint8_t>(word_at(words, c) >> shift & mask);
    if (last_code_row(grid_, row) == code_row(grid_, row)) return;
    std::byte const* const next = words + grid_.row_bytes;
    for (Number c = 0; c < columns; ++c)
      into[c] |= static_cast<std::uint8_t>(word_at(next, c) << (zero_word_bits - shift) & mask);
    return;
  }
  if (grid_.order == CodeOrder::row_pairs) {
    auto const* const bytes = reinterpret_cast<std::uint8_t const*>(at) + part.first_column;
    unsigned const shift = row % 2 == 0 ? 0 : 4;
    for (Number c = 0; c < columns; ++c)
      into[c] = static_cast<std::uint8_t>(bytes[c] >> shift & mask);
    return;
  }
  if (grid_.order == CodeOrder::interleaved) {
    Number const skipped = part.first_column % 8;
    std::byte const* const words = at + part.first_column / 8 * 4;
    Number c = 0;
    if (skipped == 0)
      for (; c + 8 <= columns; c += 8) {
        std::uint32_t const word = word_at(words, c / 8);
        for (std::size_t k = 0; k < 8; ++k)
          into[static_cast<std::size_t>(c) + k] =
              static_cast<std::uint8_t>(word >> 4 * interleaved_places[k] & mask);
      }
    for (; c < columns; ++c) {
      Number const column = skipped + c;
      unsigned const place = interleaved_places[static_cast<std::size_t>(column % 8)];
      into[c] = static_cast<std::uint8_t>(word_at(words, column / 8) >> 4 * place & mask);
    }
    return;
  }
  auto const* const bytes = reinterpret_cast<std::uint8_t const*>(at);
  if (grid_.bits == 8) {
    std::copy_n(bytes + part.first_column, columns, into);
    return;
  }
  for (Number c = 0; c < columns; ++c) {
    Number const bit = (part.first_column + c) * grid_.bits;
    std::uint32_t window = bytes[bit / 8];
    if (bit % 8 + grid_.bits > 8) window |= static_cast<std::uint32_t>(bytes[bit / 8 + 1]) << 8U;
    into[c] = static_cast<std::uint8_t>(window >> static_cast<unsigned>(bit % 8) & mask);
  }
}

double ColumnDecoder::zero_point(Number row, Number scale, Number block_row, Number block_column,
                                 StoredParts const& stored) const {
  if (grid_.zero_points == ZeroPoints::none) return 0;
  if (grid_.zero_points == ZeroPoints::bytes)
    return number_at(DType::i8, stored.zero_points, scale);
  Number const matrix = row / grid_.rows * grid_.zero_rows;
  bool const along = grid_.zero_points == ZeroPoints::along;
  Number const counted = along ? block_column : row % grid_.rows;
  Number first_bit = counted * grid_.bits;
  if (grid_.order == CodeOrder::interleaved)
    first_bit = counted / 8 * zero_word_bits +
                4 * interleaved_places[static_cast<std::size_t>(counted % 8)];
  auto const word = [&](Number bit) {
    Number const at = along ? (matrix + block_row) * grid_.zero_columns + bit / zero_word_bits
                            : (matrix + bit / zero_word_bits) * grid_.zero_columns + block_column;
    return std::uint64_t{word_at(stored.zero_points.bytes, at - stored.zero_points.begin)};
  };
  std::uint64_t const both = word(first_bit) | word(first_bit + grid_.bits - 1)
                                                   << static_cast<unsigned>(zero_word_bits);
  std::uint64_t const code = both >> static_cast<unsigned>(first_bit % zero_word_bits);
  return value_of_code(grid_.codes, grid_.bits,
                       static_cast<std::uint8_t>((code + static_cast<std::uint64_t>(zero_offset_)) &
                                                 detail::ones(grid_.bits)));
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
  Number const first = (row / grid_.rows * grid_.scale_rows + block_row) * grid_.scale_columns;
  double const second =
      grid_.second == SecondScale::none
          ? 1
          : number_at(grid_.second_dtype, stored.seconds, second_index(grid_, row));
  auto const scale_of = [&](Number at) {
    double const scale = number_at(grid_.scale_dtype, stored.scales, at);
    if (grid_.second == SecondScale::none) return static_cast<float>(scale);
    return static_cast<float>(grid_.second == SecondScale::times ? detail::product(scale, second)
                                                                 : detail::quotient(scale, second));
  };
  Number const end = part.first_column + part.columns;
  for (Number column = part.first_column; column < end;) {
    Number const block = by_column ? group(column) : column / grid_.block_columns;
    Number const block_end =
        by_column ? column + 1 : std::min(end, (block + 1) * grid_.block_columns);
    float const scale = scale_of(first + block);
    auto const zero = static_cast<float>(zero_point(row, first + block, block_row, block, stored));
    for (; column < block_end; ++column) {
      auto const c = static_cast<std::size_t>(column - part.first_column);
      scales_[c] = scale;
      zeros_[c] = zero;
    }
  }
}

[[gnu::always_inline]] inline void ColumnDecoder::put_row(Number columns, std::byte* to) const {
  auto const each = [&](auto const& number_of) {
    for (Number c = 0; c < columns; ++c) {
      auto const at = static_cast<std::size_t>(c);
      float const scaled = (number_of(at) - zeros_[at]) * scales_[at];
      std::uint16_t const element =
          bf16_of((has_factors_ ? scaled * factors_[at] : scaled) * last_);
      std::memcpy(to + 2 * c, &element, sizeof element);
    }
  };
  if (!are_integers(grid_.codes))
    return each([this](std::size_t at) { return numbers_[codes_[at]]; });
  int const half = 1 << (grid_.bits - 1);
  int const flip = grid_.codes == CodeFormat::integer ? 0 : half;
  each([=, this](std::size_t at) { return static_cast<float>((codes_[at] ^ flip) - half); });
}

void ColumnDecoder::run(RowPart const& part, StoredParts const& stored, std::byte* to) {
  auto const columns = static_cast<std::size_t>(part.columns);
  codes_.resize(columns);
  scales_.resize(columns);
  zeros_.resize(columns);
  factors_.resize(has_factors_ ? columns : 0);
  for (std::size_t c = 0; c < factors_.size(); ++c)
    factors_[c] = static_cast<float>(
        number_at(factor_dtype_, stored.factors, part.first_column + static_cast<Number>(c)));
  bool const changes = grid_.block_rows == 1 || groups_ || grid_.zero_points == ZeroPoints::packed;
  with_wide_vectors([&] {
    for (Number row = part.first_row; row < part.first_row + part.rows; ++row) {
      if (row == part.first_row || changes || row % grid_.rows % grid_.block_rows == 0)
        take_factors(row, part, stored);
      take_codes(row, part, stored.codes);
      put_row(part.columns, to);
      to += 2 * part.columns;
    }
  });
}

}  // namespace reshard::quant
