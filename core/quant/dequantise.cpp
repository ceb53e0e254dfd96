#include "core/quant/dequantise.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/base/error.hpp"

namespace reshard::quant {
namespace {

Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

bool holds(std::span<std::byte const> bytes, FlatRange const& range, int element_bits) {
  return static_cast<Index>(bytes.size()) == (range.end - range.begin) * (element_bits / 8);
}

CodeGrid grid_of(Scheme const& scheme, MatrixShape const& shape, Companions const& companions) {
  CodeGrid grid;
  grid.rows = shape.rows;
  grid.columns = shape.columns;
  grid.bits = code_bits(scheme);
  grid.row_bytes = ceil_div(shape.columns * grid.bits, 8);
  if (scheme.codes == CodeFormat::integer)
    grid.row_bytes = ceil_div(shape.columns * grid.bits, zero_word_bits) * 4;
  grid.block_rows = scheme.block_rows == 0 ? std::max<Index>(shape.rows, 1) : scheme.block_rows;
  grid.block_columns =
      scheme.block_columns == 0 ? std::max<Index>(shape.columns, 1) : scheme.block_columns;
  grid.scale_rows = ceil_div(shape.rows, grid.block_rows);
  grid.scale_columns = ceil_div(shape.columns, grid.block_columns);
  grid.zero_rows = grid.scale_rows;
  if (companions.zero_points == DType::i8) grid.zero_points = ZeroPoints::bytes;
  if (companions.zero_points == DType::i32) {
    grid.zero_points = ZeroPoints::packed;
    grid.zero_rows = ceil_div(shape.rows * grid.bits, zero_word_bits);
  }
  grid.codes = scheme.codes;
  grid.second = scheme.second;
  grid.scale_dtype = companions.scale;
  grid.second_dtype = companions.second;
  grid.second_of_each_matrix = companions.seconds != 1;
  return grid;
}

}  // namespace

RowPart leading_part(Index columns, Index first, Index count, Index most_rows, Index most_columns) {
  RowPart part{
      .first_row = first / columns, .rows = 1, .first_column = first % columns, .columns = 0};
  Index const whole_rows = std::min(count / columns, most_rows);
  if (part.first_column == 0 && whole_rows >= 1) {
    part.rows = whole_rows;
    part.columns = columns;
  } else {
    part.columns = std::min({columns - part.first_column, count, most_columns});
  }
  return part;
}

Dequantiser::Dequantiser(Scheme const& scheme, MatrixShape const& shape,
                         Companions const& companions)
    : shape_(shape), companions_(companions) {
  RESHARD_EXPECT(!problem_of(scheme, companions));
  RESHARD_EXPECT(shape.stack >= 0 && shape.rows >= 0 && shape.columns >= 0 &&
                 (companions.seconds == 1 || companions.seconds == shape.stack));
  grid_ = grid_of(scheme, shape, companions);
  for (std::size_t code = 0; code < std::size_t{1} << static_cast<unsigned>(grid_.bits); ++code)
    values_[code] = value_of_code(grid_.codes, grid_.bits, static_cast<std::uint8_t>(code));
}

Needs Dequantiser::needs_of(RowPart const& part) const {
  Index const last_row = part.first_row + part.rows - 1;
  Index const last_column = part.first_column + part.columns - 1;
  RESHARD_EXPECT(part.rows >= 1 && part.columns >= 1 && last_row < shape_.stack * shape_.rows &&
                 last_column < shape_.columns);
  RESHARD_EXPECT(part.rows == 1 || part.columns == shape_.columns);
  Needs needs;
  bool const to_row_end = last_column + 1 == shape_.columns;
  needs.code_bytes = {
      part.first_row * grid_.row_bytes + part.first_column * grid_.bits / 8,
      last_row * grid_.row_bytes +
          (to_row_end ? grid_.row_bytes : ceil_div((last_column + 1) * grid_.bits, 8))};
  needs.scales = {scale_index(grid_, part.first_row, part.first_column),
                  scale_index(grid_, last_row, last_column) + 1};
  if (grid_.second != SecondScale::none)
    needs.seconds = {second_index(grid_, part.first_row), second_index(grid_, last_row) + 1};
  if (grid_.zero_points == ZeroPoints::bytes) needs.zero_points = needs.scales;
  if (grid_.zero_points == ZeroPoints::packed)
    needs.zero_points = {zero_words(grid_, part.first_row, part.first_column).begin,
                         zero_words(grid_, last_row, last_column).end + 1};
  return needs;
}

namespace {

void put(std::byte* to, Index i, std::uint16_t element) { std::memcpy(to + 2 * i, &element, 2); }

/// The elements of `count` codes of `code_bits` bits that begin at a bit.
void look_up(std::span<std::uint16_t const> elements, std::byte const* codes, Index first_bit,
             Index count, int code_bits, std::byte* to) {
  if (code_bits == 8) {
    std::byte const* const first = codes + first_bit / 8;
    for (Index i = 0; i < count; ++i) put(to, i, elements[static_cast<std::size_t>(first[i])]);
    return;
  }
  if (code_bits == 4 && first_bit % 8 == 0 && count % 2 == 0) {
    std::byte const* const first = codes + first_bit / 8;
    for (Index i = 0; i < count / 2; ++i) {
      auto const pair = static_cast<std::size_t>(first[i]);
      put(to, 2 * i, elements[pair & 15U]);
      put(to, 2 * i + 1, elements[pair >> 4U]);
    }
    return;
  }
  auto const bits = static_cast<std::size_t>(code_bits);
  std::size_t const mask = (std::size_t{1} << bits) - 1;
  for (Index i = 0; i < count; ++i) {
    auto const bit = static_cast<std::size_t>(first_bit + i * code_bits);
    std::size_t const byte = bit / 8;
    auto window = static_cast<std::size_t>(codes[byte]);
    if (bit % 8 + bits > 8) window |= static_cast<std::size_t>(codes[byte + 1]) << 8U;
    put(to, i, elements[(window >> bit % 8) & mask]);
  }
}

}  // namespace

/// One by one, of 8-bit codes.
void Dequantiser::compute(std::byte const* codes, Index count, Factors const& factors,
                          std::byte* to) const {
  bool const divide = grid_.second == SecondScale::divided_by;
  auto const each = [&](auto const& element_of) {
    for (Index i = 0; i < count; ++i)
      put(to, i, element_of(values_[static_cast<std::size_t>(codes[i])], factors, divide));
  };
  if (ordinary(factors))
    each([](auto... of) { return dequantised_plainly(of...); });
  else
    each([](auto... of) { return dequantised(of...); });
}

void Dequantiser::run(RowPart const& part, StoredBytes const& stored, std::span<std::byte> to) {
  Needs const needs = needs_of(part);
  RESHARD_EXPECT(holds(stored.codes, needs.code_bytes, 8) &&
                 holds(stored.scales, needs.scales, bits(companions_.scale)));
  RESHARD_EXPECT(holds(stored.seconds, needs.seconds, bits(companions_.second)));
  RESHARD_EXPECT(holds(stored.zero_points, needs.zero_points,
                       bits(companions_.zero_points.value_or(DType::i8))));
  RESHARD_EXPECT(static_cast<Index>(to.size()) == 2 * part.rows * part.columns);
  StoredParts const parts{{stored.codes.data(), needs.code_bytes.begin},
                          {stored.scales.data(), needs.scales.begin},
                          {stored.seconds.data(), needs.seconds.begin},
                          {stored.zero_points.data(), needs.zero_points.begin}};
  std::byte* at = to.data();
  for (Index row = part.first_row; row < part.first_row + part.rows; ++row) {
    Index const row_bit = (row * grid_.row_bytes - needs.code_bytes.begin) * 8;
    Index const end_of_part = part.first_column + part.columns;
    Index scale = scale_index(grid_, row, part.first_column);
    Index end = (part.first_column / grid_.block_columns + 1) * grid_.block_columns;
    for (Index column = part.first_column; column < end_of_part; ++scale) {
      Index const count = std::min(end, end_of_part) - column;
      Factors const factors = factors_of(grid_, parts, row, column, scale);
      Index const first_bit = row_bit + column * grid_.bits;
      auto const elements = tables_.of(grid_, values_, factors, scale, parts.scales);
      if (elements.empty())
        compute(stored.codes.data() + first_bit / 8, count, factors, at);
      else
        look_up(elements, stored.codes.data(), first_bit, count, grid_.bits, at);
      at += 2 * count;
      column = end;
      end += grid_.block_columns;
    }
  }
}

}  // namespace reshard::quant
