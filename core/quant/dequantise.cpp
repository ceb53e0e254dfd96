#include "core/quant/dequantise.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/base/error.hpp"
#include "core/quant/unpack_codes.hpp"
#include "core/quant/wide_vectors.hpp"

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
  grid.zero_columns = grid.scale_columns;
  if (companions.zero_points == DType::i32 && is_transposed(scheme.order)) {
    grid.zero_points = ZeroPoints::along;
    grid.zero_rows = grid.scale_rows;
    grid.zero_columns = ceil_div(grid.scale_columns * grid.bits, zero_word_bits);
  }
  grid.codes = scheme.codes;
  grid.order = scheme.order;
  if (scheme.order == CodeOrder::rows) grid.row_bytes = shape.columns * 4;
  if (scheme.order == CodeOrder::row_pairs) grid.row_bytes = shape.columns;
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
    : shape_(shape),
      companions_(companions),
      grid_(grid_of(scheme, shape, companions)),
      tables_(grid_),
      by_columns_(is_by_columns(scheme, companions)
                      ? std::make_optional<ColumnDecoder>(grid_, scheme, companions)
                      : std::nullopt) {
  RESHARD_EXPECT(!problem_of(scheme, companions));
  RESHARD_EXPECT(shape.stack >= 0 && shape.rows >= 0 && shape.columns >= 0 &&
                 (companions.seconds == 1 || companions.seconds == shape.stack));
  for (std::size_t code = 0; code < std::size_t{1} << static_cast<unsigned>(grid_.bits); ++code) {
    values_[code] = value_of_code(grid_.codes, grid_.bits, static_cast<std::uint8_t>(code));
    numbers_[code] = static_cast<float>(values_[code]);
  }
}

Needs Dequantiser::needs_of(RowPart const& part) const {
  Index const last_row = part.first_row + part.rows - 1;
  Index const last_column = part.first_column + part.columns - 1;
  RESHARD_EXPECT(part.rows >= 1 && part.columns >= 1 && last_row < shape_.stack * shape_.rows &&
                 last_column < shape_.columns);
  RESHARD_EXPECT(part.rows == 1 || part.columns == shape_.columns);
  if (by_columns_) return by_columns_->needs_of(part);
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

/// Columns whose codes are unpacked at a time.
constexpr Index stretch = 2048;

void put(std::byte* to, Index i, std::uint16_t element) { std::memcpy(to + 2 * i, &element, 2); }

#if defined(__x86_64__)
/// look_up() of codes of 4 bits, 16 at a time: the table is in two registers.
[[gnu::target("avx2")]] void look_up_16(std::uint16_t const* elements, std::uint8_t const* codes,
                                        Index count, std::byte* to) {
  auto const load = [](void const* at) { return _mm_loadu_si128(static_cast<__m128i const*>(at)); };
  __m128i const low_byte = _mm_set1_epi16(0xff);
  __m128i const first = load(elements);
  __m128i const second = load(elements + 8);
  __m128i const low =
      _mm_packus_epi16(_mm_and_si128(first, low_byte), _mm_and_si128(second, low_byte));
  __m128i const high = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
  Index i = 0;
  for (; i + 16 <= count; i += 16) {
    __m128i const at = load(codes + i);
    __m128i const found_low = _mm_shuffle_epi8(low, at);
    __m128i const found_high = _mm_shuffle_epi8(high, at);
    auto* const into = reinterpret_cast<__m128i*>(to + 2 * i);
    _mm_storeu_si128(into, _mm_unpacklo_epi8(found_low, found_high));
    _mm_storeu_si128(into + 1, _mm_unpackhi_epi8(found_low, found_high));
  }
  for (; i < count; ++i) put(to, i, elements[codes[i]]);
}
#endif

[[gnu::always_inline]] inline void look_up(std::uint16_t const* elements, std::uint8_t const* codes,
                                           Index count, std::byte* to) {
  Index i = 0;
  for (; i + 8 <= count; i += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, codes + i, sizeof eight);
    std::array<std::uint16_t, 8> found;
    for (std::size_t k = 0; k < 8; ++k) found[k] = elements[eight >> (8 * k) & 0xffU];
    std::memcpy(to + 2 * i, found.data(), sizeof found);
  }
  for (; i < count; ++i) put(to, i, elements[codes[i]]);
}

/// A scale whose products with codes are normal numbers of F32 or zero; nothing for another one.
std::optional<float> usual(double scale) {
  double const size = scale < 0 ? -scale : scale;
  if (!(size >= 0x1p-100 && size <= 0x1p100)) return std::nullopt;
  return static_cast<float>(scale);
}

[[gnu::always_inline]] inline std::uint16_t rounded(std::uint32_t bits) {
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
}

template <class ElementOf>
[[gnu::always_inline]] inline void put_each(ElementOf const& element_of, Index count,
                                            std::byte* to) {
  constexpr Index group = 32;  // a fixed number of bytes becomes vectors without a loop
  Index i = 0;
  for (; i + group <= count; i += group) {
    std::array<std::uint16_t, group> elements;
    for (Index k = 0; k < group; ++k) elements[static_cast<std::size_t>(k)] = element_of(i + k);
    std::memcpy(to + 2 * i, elements.data(), sizeof elements);
  }
  for (; i < count; ++i) put(to, i, element_of(i));
}

template <class NumberOf>
[[gnu::always_inline]] inline void products(NumberOf const& number_of, Index count, float scale,
                                            std::byte* to) {
  put_each([=](Index i) { return rounded(std::bit_cast<std::uint32_t>(number_of(i) * scale)); },
           count, to);
}

}  // namespace

[[gnu::always_inline]] inline void Dequantiser::fill(Factors const& factors,
                                                     std::span<std::uint16_t> table) const {
  auto const scale = usual(factors.scale);
  if (scale && factors.zero == 0 && grid_.codes != CodeFormat::e5m2)
    return products([this](Index i) { return numbers_[static_cast<std::size_t>(i)]; },
                    static_cast<Index>(table.size()), *scale, std::as_writable_bytes(table).data());
  for (std::size_t code = 0; code < table.size(); ++code)
    table[code] = dequantised(values_[code], factors);
}

[[gnu::always_inline]] inline void Dequantiser::compute(std::uint8_t const* codes, Index count,
                                                        Factors const& factors,
                                                        std::byte* to) const {
  auto const scale = usual(factors.scale);
  if (scale && are_integers(grid_.codes)) {
    // A number of two's complement is one without sign less half of all.
    int const flip = grid_.codes == CodeFormat::i8 ? 0x80 : 0;
    int const offset = (1 << (grid_.bits - 1)) + static_cast<int>(factors.zero);
    return products([=](Index i) { return static_cast<float>((codes[i] ^ flip) - offset); }, count,
                    *scale, to);
  }
  if (scale && factors.zero == 0 && grid_.codes != CodeFormat::e5m2)
    return products([=, this](Index i) { return numbers_[codes[i]]; }, count, *scale, to);
  for (Index i = 0; i < count; ++i) put(to, i, dequantised(values_[codes[i]], factors));
}

/// The blocks of one row that these columns reach.
[[gnu::always_inline]] inline void Dequantiser::run_blocks(Index row, Index first_column,
                                                           Index columns, std::uint8_t const* codes,
                                                           StoredParts const& parts,
                                                           std::byte* to) {
  Index scale = scale_index(grid_, row, first_column);
  Index const last = first_column + columns;
  Index end = (first_column / grid_.block_columns + 1) * grid_.block_columns;
  for (Index column = first_column; column < last; ++scale) {
    Index const count = std::min(end, last) - column;
    auto const factors = [&] { return factors_of(grid_, parts, row, column, scale); };
    if (tables_.kept()) {
      auto const elements =
          tables_.of(scale, parts.scales, factors, [&](auto const&... of) { fill(of...); });
#if defined(__x86_64__)
      if (elements.size() == 16 && widest_vectors != Vectors::plain)
        look_up_16(elements.data(), codes, count, to);
      else
#endif
        look_up(elements.data(), codes, count, to);
    } else {
      compute(codes, count, factors(), to);
    }
    codes += count;
    to += 2 * count;
    column = end;
    end += grid_.block_columns;
  }
}

[[gnu::always_inline]] inline void Dequantiser::run_rows(RowPart const& part,
                                                         std::span<std::byte const> codes,
                                                         StoredParts const& parts, std::byte* to) {
  std::array<std::uint8_t, stretch> unpacked;
  for (Index row = part.first_row; row < part.first_row + part.rows; ++row) {
    if (grid_.second != SecondScale::none)
      tables_.begin_second(number_at(grid_.second_dtype, parts.seconds, second_index(grid_, row)));
    Index const step = grid_.bits == 8 ? part.columns : stretch;
    for (Index done = 0; done < part.columns; done += step) {
      Index const column = part.first_column + done;
      Index const count = std::min(step, part.columns - done);
      Index const first_bit = (row * grid_.row_bytes - parts.codes.begin) * 8 + column * grid_.bits;
      auto const* bytes = reinterpret_cast<std::uint8_t const*>(codes.data()) + first_bit / 8;
      if (grid_.bits < 8) {
        unpack(codes, grid_.bits, first_bit, count, unpacked.data());
        bytes = unpacked.data();
      }
      run_blocks(row, column, count, bytes, parts, to);
      to += 2 * count;
    }
  }
}

void Dequantiser::run(RowPart const& part, StoredBytes const& stored, std::span<std::byte> to) {
  Needs const needs = needs_of(part);
  RESHARD_EXPECT(holds(stored.codes, needs.code_bytes, 8) &&
                 holds(stored.scales, needs.scales, bits(companions_.scale)));
  RESHARD_EXPECT(holds(stored.seconds, needs.seconds, bits(companions_.second)));
  RESHARD_EXPECT(holds(stored.zero_points, needs.zero_points,
                       bits(companions_.zero_points.value_or(DType::i8))));
  RESHARD_EXPECT(static_cast<Index>(to.size()) == 2 * part.rows * part.columns);
  RESHARD_EXPECT(holds(stored.groups, needs.groups, bits(DType::i32)));
  RESHARD_EXPECT(
      holds(stored.factors, needs.factors, bits(companions_.factors.value_or(DType::f32))));
  StoredParts const parts{{stored.codes.data(), needs.code_bytes.begin},
                          {stored.scales.data(), needs.scales.begin},
                          {stored.seconds.data(), needs.seconds.begin},
                          {stored.zero_points.data(), needs.zero_points.begin},
                          {stored.groups.data(), needs.groups.begin},
                          {stored.factors.data(), needs.factors.begin}};
  if (by_columns_) return by_columns_->run(part, parts, to.data());
  // GCC 12 makes slower code of put_each() for the widest ones.
  with_wide_vectors<Vectors::avx2>([&] { run_rows(part, stored.codes, parts, to.data()); });
}

}  // namespace reshard::quant
