#include "core/quant/dequantise.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/base/error.hpp"
#include "core/quant/number_formats.hpp"

namespace reshard::quant {
namespace {

constexpr Index word_bits = 32;

Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

double value_of(Scheme const& scheme, std::uint8_t code) {
  switch (scheme.codes) {
    case CodeFormat::e4m3: return decode(formats::e4m3, code);
    case CodeFormat::e5m2: return decode(formats::e5m2, code);
    case CodeFormat::e2m1: return decode(formats::e2m1, code);
    case CodeFormat::i8: return static_cast<std::int8_t>(code);
    case CodeFormat::integer: return code - (1 << (scheme.integer_bits - 1));
  }
  return 0;
}

template <class Code>
std::uint64_t load(std::byte const* at) {
  Code code{};
  std::memcpy(&code, at, sizeof code);
  return code;
}

/// Element `at` of a tensor of which `bytes` holds the elements from `begin` on.
double number_at(DType dtype, std::span<std::byte const> bytes, Index begin, Index at) {
  std::byte const* const place = bytes.data() + (at - begin) * (bits(dtype) / 8);
  switch (dtype) {
    case DType::f32: return decode(formats::f32, load<std::uint32_t>(place));
    case DType::bf16: return decode(formats::bf16, load<std::uint16_t>(place));
    case DType::f16: return decode(formats::f16, load<std::uint16_t>(place));
    case DType::f8_e4m3: return decode(formats::e4m3, load<std::uint8_t>(place));
    case DType::f8_e5m2: return decode(formats::e5m2, load<std::uint8_t>(place));
    case DType::i8: return static_cast<std::int8_t>(*place);
    default: return decode_e8m0(static_cast<std::uint8_t>(*place));
  }
}

bool holds(std::span<std::byte const> bytes, FlatRange const& range, int element_bits) {
  return static_cast<Index>(bytes.size()) == (range.end - range.begin) * (element_bits / 8);
}

}  // namespace

Dequantiser::Dequantiser(Scheme const& scheme, MatrixShape const& shape, Companions const& companions)
    : scheme_(scheme), shape_(shape), companions_(companions), bits_(code_bits(scheme)) {
  bool const along_rows = companions.zero_points == DType::i32;
  RESHARD_EXPECT(!problem_of(scheme, companions));
  RESHARD_EXPECT(shape.stack >= 0 && shape.rows >= 0 && shape.columns >= 0 && (companions.seconds == 1 || companions.seconds == shape.stack));
  row_bytes_ = scheme.codes == CodeFormat::integer ? ceil_div(shape.columns * bits_, word_bits) * 4 : ceil_div(shape.columns * bits_, 8);
  block_rows_ = scheme.block_rows == 0 ? std::max<Index>(shape.rows, 1) : scheme.block_rows;
  block_columns_ = scheme.block_columns == 0 ? std::max<Index>(shape.columns, 1) : scheme.block_columns;
  scale_rows_ = ceil_div(shape.rows, block_rows_);
  scale_columns_ = ceil_div(shape.columns, block_columns_);
  zero_rows_ = along_rows ? ceil_div(shape.rows * bits_, word_bits) : scale_rows_;
  for (std::size_t code = 0; code < std::size_t{1} << static_cast<unsigned>(bits_); ++code)
    values_[code] = value_of(scheme, static_cast<std::uint8_t>(code));
}

Index Dequantiser::scale_at(Index row, Index column) const {
  return (row / shape_.rows * scale_rows_ + row % shape_.rows / block_rows_) * scale_columns_ + column / block_columns_;
}

FlatRange Dequantiser::zero_words(Index row, Index column) const {
  Index const first_bit = row % shape_.rows * bits_;
  Index const before = row / shape_.rows * zero_rows_;
  auto const word = [&](Index bit) { return (before + bit / word_bits) * scale_columns_ + column / block_columns_; };
  return {word(first_bit), word(first_bit + bits_ - 1)};
}

Needs Dequantiser::needs_of(RowPart const& part) const {
  Index const last_row = part.first_row + part.rows - 1;
  Index const last_column = part.first_column + part.columns - 1;
  RESHARD_EXPECT(part.rows >= 1 && part.columns >= 1 && last_row < shape_.stack * shape_.rows && last_column < shape_.columns);
  RESHARD_EXPECT(part.rows == 1 || part.columns == shape_.columns);
  Needs needs;
  bool const to_row_end = last_column + 1 == shape_.columns;
  needs.code_bytes = {part.first_row * row_bytes_ + part.first_column * bits_ / 8,
                      last_row * row_bytes_ + (to_row_end ? row_bytes_ : ceil_div((last_column + 1) * bits_, 8))};
  needs.scales = {scale_at(part.first_row, part.first_column), scale_at(last_row, last_column) + 1};
  if (scheme_.second != SecondScale::none) needs.seconds = {second_at(part.first_row), second_at(last_row) + 1};
  if (companions_.zero_points == DType::i8) needs.zero_points = needs.scales;
  if (companions_.zero_points == DType::i32)
    needs.zero_points = {zero_words(part.first_row, part.first_column).begin, zero_words(last_row, last_column).end + 1};
  return needs;
}

double Dequantiser::zero_at(Index row, Index column, Needs const& needs, StoredBytes const& stored) const {
  if (companions_.zero_points == DType::i8) return number_at(DType::i8, stored.zero_points, needs.scales.begin, scale_at(row, column));
  FlatRange const words = zero_words(row, column);
  std::array<std::uint32_t, 2> pair{};
  std::memcpy(&pair[0], stored.zero_points.data() + (words.begin - needs.zero_points.begin) * 4, 4);
  std::memcpy(&pair[1], stored.zero_points.data() + (words.end - needs.zero_points.begin) * 4, 4);
  std::uint64_t const both = pair[0] | static_cast<std::uint64_t>(pair[1]) << 32U;
  auto const first_bit = static_cast<unsigned>(row % shape_.rows * bits_ % word_bits);
  return values_[(both >> first_bit) & ((std::uint64_t{1} << static_cast<unsigned>(bits_)) - 1)];
}

double Dequantiser::second_of(Index row, Needs const& needs, StoredBytes const& stored) const {
  return scheme_.second == SecondScale::none ? 1 : number_at(companions_.second, stored.seconds, needs.seconds.begin, second_at(row));
}

void Dequantiser::run_block(std::span<std::byte const> codes, Index first_bit, Index count, Factors const& factors, std::byte* to) const {
  auto const rounded = [this, factors, divide = scheme_.second == SecondScale::divided_by](std::size_t code) {
    double const value = (values_[code] - factors.zero) * factors.scale;
    return static_cast<std::uint16_t>(encode(formats::bf16, divide ? value / factors.divisor : value).code);
  };
  auto const put = [to](Index i, std::uint16_t element) { std::memcpy(to + 2 * i, &element, 2); };
  if (bits_ == 8) {
    std::byte const* const first = codes.data() + first_bit / 8;
    for (Index i = 0; i < count; ++i) put(i, rounded(static_cast<std::size_t>(first[i])));
    return;
  }
  // Few codes: each is computed once for the block and then looked up.
  std::size_t const mask = (std::size_t{1} << static_cast<unsigned>(bits_)) - 1;
  std::array<std::uint16_t, 128> elements;
  for (std::size_t code = 0; code <= mask; ++code) elements[code] = rounded(code);
  for (Index i = 0; i < count; ++i) {
    auto const bit = static_cast<std::size_t>(first_bit + i * bits_);
    std::size_t const byte = bit / 8;
    auto window = static_cast<std::size_t>(codes[byte]);
    if (bit % 8 + static_cast<std::size_t>(bits_) > 8) window |= static_cast<std::size_t>(codes[byte + 1]) << 8U;
    put(i, elements[(window >> bit % 8) & mask]);
  }
}

void Dequantiser::run(RowPart const& part, StoredBytes const& stored, std::span<std::byte> to) const {
  Needs const needs = needs_of(part);
  RESHARD_EXPECT(holds(stored.codes, needs.code_bytes, 8) && holds(stored.scales, needs.scales, bits(companions_.scale)));
  RESHARD_EXPECT(holds(stored.seconds, needs.seconds, bits(companions_.second)));
  RESHARD_EXPECT(holds(stored.zero_points, needs.zero_points, bits(companions_.zero_points.value_or(DType::i8))));
  RESHARD_EXPECT(static_cast<Index>(to.size()) == 2 * part.rows * part.columns);
  std::byte* at = to.data();
  for (Index row = part.first_row; row < part.first_row + part.rows; ++row) {
    Index const row_bit = (row * row_bytes_ - needs.code_bytes.begin) * 8;
    double const second = second_of(row, needs, stored);
    Index scale = scale_at(row, part.first_column);
    Index end = std::min((part.first_column / block_columns_ + 1) * block_columns_, part.first_column + part.columns);
    for (Index column = part.first_column; column < part.first_column + part.columns; ++scale) {
      Factors factors{.scale = number_at(companions_.scale, stored.scales, needs.scales.begin, scale)};
      (scheme_.second == SecondScale::times ? factors.scale : factors.divisor) *= second;
      if (companions_.zero_points) factors.zero = zero_at(row, column, needs, stored);
      run_block(stored.codes, row_bit + column * bits_, end - column, factors, at);
      at += 2 * (end - column);
      column = end;
      end = std::min(end + block_columns_, part.first_column + part.columns);
    }
  }
}

}  // namespace reshard::quant
