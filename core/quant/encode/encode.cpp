#include "core/quant/encode/encode.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/error.hpp"
#include "core/quant/encode/fraction_steps.hpp"
#include "core/quant/encode/nearest_codes.hpp"
#include "core/quant/encode/scale_rules.hpp"
#include "core/quant/encode/weight_numbers.hpp"
#include "core/quant/wide_vectors.hpp"

namespace reshard::quant {
namespace {

using scale_rules::Factor;
using scale_rules::Step;
using weights::load;
using weights::value_of;
using weights::with_number;

constexpr std::uint32_t infinity = 0x7f800000U;

/// What is known of a block before its weights become codes.
struct Block {
  Factor factor;
  std::int16_t base = 0;                 ///< FractionSteps::base()
  FractionSteps const* steps = nullptr;  ///< none where base is 0
};

/// A row's weights over their scales, block by block: put(column, number).
template <class Number, class Put>
[[gnu::always_inline]] inline void scale_row(Step step, std::byte const* from, Index columns,
                                             Index width, Block const* blocks, Put const& put) {
  scale_rules::with_step(step, [&]<Step each>() {
    for (Index begin = 0; begin < columns; begin += width, ++blocks) {
      Index const end = std::min(begin + width, columns);
      float const factor = blocks->factor.number;
      for (Index i = begin; i < end; ++i)
        put(i, scale_rules::scaled<Number, each>(value_of<Number>(load<Number>(from, i)), factor));
    }
  });
}

/// The codes of a row of E4M3; `by_steps` where blocks have steps.
template <class Number>
[[gnu::always_inline]] inline void encode_e4m3(Step step, bool by_steps, std::byte const* from,
                                               Index columns, Index width, Block const* blocks,
                                               std::byte* to) {
  auto const put = [to](Index i, float value) { to[i] = static_cast<std::byte>(e4m3_of(value)); };
  if (!by_steps) return scale_row<Number>(step, from, columns, width, blocks, put);
  constexpr Index group = 32;
  Index const size = static_cast<Index>(sizeof(typename Number::Stored));
  for (Index begin = 0; begin < columns; begin += width, ++blocks) {
    Index const end = std::min(begin + width, columns);
    bool const usual = blocks->base != 0;
    for (Index i = begin; i < end;) {
      if (usual)
        i += encode_by_steps(from + size * i, end - i, *blocks->steps, blocks->base, to + i);
      if (i == end) break;
      Index const count = usual ? std::min(group, end - i) : end - i;
      scale_row<Number>(step, from + size * i, count, count, blocks,
                        [&](Index k, float value) { put(i + k, value); });
      i += count;
    }
  }
}

/// Pairs of codes in four bits, the first one lowest.
[[gnu::always_inline]] inline void pack(std::uint8_t const* each, Index bytes, std::byte* to) {
  for (Index i = 0; i < bytes; ++i) {
    std::uint16_t two = 0;
    std::memcpy(&two, each + 2 * i, sizeof two);
    to[i] = static_cast<std::byte>(two | two >> 4U);
  }
}

/// A row's codes; `each` has a byte for every code, and zeros behind them.
template <class Number>
[[gnu::always_inline]] inline void encode_row(Encoding const& encoding, Step step, bool by_steps,
                                              std::byte const* from, Index columns, Index width,
                                              Block const* blocks, std::uint8_t* each, Index bytes,
                                              std::byte* to) {
  int const half = 1 << (encoding.integer_bits - 1);
  if (encoding.codes == CodeKind::e4m3) {
    encode_e4m3<Number>(step, by_steps, from, columns, width, blocks, to);
  } else if (encoding.codes == CodeKind::e2m1) {
    // Those who divide have no zero below zero; compressed-tensors' quotient of MXFP4 may become
    // one in F16.
    bool const zeros = encoding.rule == ScaleRule::power_above;
    float const below = encoding.rule == ScaleRule::power ? -Number::largest_zero : 0;
    scale_row<Number>(step, from, columns, width, blocks,
                      [each, zeros, below](Index i, float value) {
                        bool const negative =
                            zeros ? std::bit_cast<std::uint32_t>(value) >> 31U != 0 : value < below;
                        each[i] = static_cast<std::uint8_t>(e2m1_of(value, negative));
                      });
    pack(each, bytes, to);
  } else {
    scale_row<Number>(step, from, columns, width, blocks, [each, half](Index i, float value) {
      each[i] = static_cast<std::uint8_t>(integer_of(value, half));
    });
    if (encoding.integer_bits == 4) return pack(each, bytes, to);
    auto const flip = static_cast<std::uint8_t>(encoding.codes == CodeKind::i8 ? half : 0);
    for (Index i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(each[i] ^ flip);
  }
}

/// The largest magnitude of some weights.
template <class Number>
[[gnu::always_inline]] inline typename Number::Stored largest_of_row(std::byte const* from,
                                                                     Index count) {
  using Stored = typename Number::Stored;
  using Signed = std::make_signed_t<Stored>;
  constexpr auto magnitude = static_cast<Stored>(~Stored{0}) >> 1U;
  Signed most = 0;
  for (Index i = 0; i < count; ++i) {
    auto const one = static_cast<Signed>(load<Number>(from, i) & magnitude);
    most = most < one ? one : most;
  }
  return static_cast<Stored>(most);
}

/// The largest magnitude of each block of a row.
template <class Number>
[[gnu::always_inline]] inline void largest_of_blocks(std::byte const* from, Index columns,
                                                     Index width,
                                                     typename Number::Stored* largest) {
  constexpr Index usual = 32;  // as a constant it is a vector or two
  Index const size = static_cast<Index>(sizeof(typename Number::Stored));
  Index begin = 0;
  if (width == usual)
    for (; begin + usual <= columns; begin += usual)
      *largest++ = largest_of_row<Number>(from + size * begin, usual);
  for (; begin < columns; begin += width)
    *largest++ = largest_of_row<Number>(from + size * begin, std::min(width, columns - begin));
}

/// Raises the magnitudes of columns to those of a row.
template <class Number>
[[gnu::always_inline]] inline void raise(std::byte const* from, Index columns,
                                         typename Number::Stored* __restrict__ most) {
  using Stored = typename Number::Stored;
  using Signed = std::make_signed_t<Stored>;
  constexpr auto magnitude = static_cast<Stored>(~Stored{0}) >> 1U;
  for (Index i = 0; i < columns; ++i) {
    auto const one = static_cast<Signed>(load<Number>(from, i) & magnitude);
    auto const before = static_cast<Signed>(most[i]);
    most[i] = static_cast<Stored>(before < one ? one : before);
  }
}

/// Stores the lowest bytes of a scale, and returns where the next one is stored.
std::byte* put_scale(std::uint32_t scale, std::size_t bytes, std::byte* to) {
  if (bytes == 1) std::memcpy(to, &scale, 1);
  if (bytes == 2) std::memcpy(to, &scale, 2);
  if (bytes == 4) std::memcpy(to, &scale, 4);
  return to + bytes;
}

template <class Number>
std::optional<Inexact> first_special(std::byte const* weights, Index count) {
  for (Index i = 0; i < count; ++i) {
    float const value = value_of<Number>(load<Number>(weights, i));
    if (!std::isfinite(value)) return Inexact{static_cast<std::size_t>(i), value};
  }
  return std::nullopt;
}

}  // namespace

float second_scale(Encoding const& encoding, DType weights, float largest) {
  constexpr float most = 448.0F * 6.0F;
  if (encoding.rule == ScaleRule::times) return largest == 0 ? 1 : largest / most;
  return with_number(weights, [&]<class Number>(Number) {
    // PyTorch divides a number by a tensor in two steps.
    float const inverse = Number::rounded(1.0F / std::max(largest, Number::least));
    float const scale = Number::rounded(most * inverse);
    return std::isinf(scale) ? 1 : scale;
  });
}

Largest largest_of(DType weights, std::span<std::byte const> values) {
  return with_number(weights, [&]<class Number>(Number) {
    using Stored = typename Number::Stored;
    auto const count = static_cast<Index>(values.size() / sizeof(Stored));
    Stored most = 0;
    with_wide_vectors(
        [&values, count, to = &most] { *to = largest_of_row<Number>(values.data(), count); });
    Largest result;
    if (Number::wide(most) >= infinity)
      result.special = first_special<Number>(values.data(), count);
    else
      result.magnitude = value_of<Number>(most);
    return result;
  });
}

Encoder::Encoder(Encoding const& encoding, DType weights, Index columns)
    : encoding_(encoding),
      weights_(weights),
      columns_(columns),
      width_(encoding.block_columns == 0 ? std::max<Index>(columns, 1) : encoding.block_columns) {
  RESHARD_EXPECT(weights == DType::bf16 || weights == DType::f16 || weights == DType::f32);
}

Index Encoder::code_row_bytes() const {
  if (encoding_.codes == CodeKind::e2m1) return (columns_ + 1) / 2;
  if (encoding_.codes != CodeKind::packed) return columns_;
  return (columns_ * encoding_.integer_bits + 31) / 32 * 4;
}

namespace {

/// Whether blocks of BF16 weights have so many elements for a factor that a table of its digits is
/// worth while.
bool is_by_steps(Encoding const& encoding, DType weights, Index width) {
  constexpr Index fewest = 1024;
  bool const powers = encoding.rule == ScaleRule::power ||
                      encoding.rule == ScaleRule::power_above || encoding.scales == DType::f8_e8m0;
  return widest_vectors == Vectors::avx512 && weights == DType::bf16 &&
         encoding.codes == CodeKind::e4m3 && (powers || encoding.block_rows * width >= fewest);
}

/// Gives blocks their steps; those of powers of two are all the same.
void take_steps(Step step, std::span<Block> blocks, std::span<FractionSteps> tables) {
  scale_rules::with_step(step, [&]<Step each>() {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      FractionSteps& table = tables[tables.size() == 1 ? 0 : b];
      float const factor = blocks[b].factor.number;
      blocks[b].base = FractionSteps::base<each>(factor);
      blocks[b].steps = &table;
      if (blocks[b].base != 0) table.make<each>(factor);
    }
  });
}

}  // namespace

template <class Number>
std::optional<Inexact> Encoder::run_as(Index rows, std::byte const* weights, std::byte* codes,
                                       std::byte* scales, float largest_of_all) const {
  using Stored = typename Number::Stored;
  Index const row_bytes = columns_ * static_cast<Index>(sizeof(Stored));
  auto const scale_bytes = static_cast<std::size_t>(bits(encoding_.scales) / 8);
  float const second =
      has_second(encoding_.rule) ? second_scale(encoding_, weights_, largest_of_all) : 1;
  Step const step = scale_rules::step_of(encoding_.rule);
  bool const by_steps = is_by_steps(encoding_, weights_, width_);
  bool const one_table = encoding_.scales == DType::f8_e8m0 || encoding_.scales == DType::u8;
  std::vector<Block> blocks(static_cast<std::size_t>(scale_columns()));
  std::vector<FractionSteps> tables(by_steps ? (one_table ? 1 : blocks.size()) : 0);
  std::vector<Stored> largest(blocks.size());
  std::vector<Stored> of_columns(encoding_.block_rows > 1 ? static_cast<std::size_t>(columns_) : 0);
  std::vector<std::uint8_t> each(static_cast<std::size_t>((columns_ + 7) / 8 * 8));
  for (Index first = 0; first < rows; first += encoding_.block_rows) {
    Index const count = std::min(encoding_.block_rows, rows - first);
    std::byte const* const from = weights + first * row_bytes;
    std::ranges::fill(of_columns, Stored{0});
    with_wide_vectors([=, columns = columns_, width = width_, most = of_columns.data(),
                       to = largest.data(), together = !of_columns.empty()] {
      for (Index r = 0; r < count && together; ++r)
        raise<Number>(from + r * row_bytes, columns, most);
      largest_of_blocks<Number>(together ? reinterpret_cast<std::byte const*>(most) : from, columns,
                                width, to);
    });
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (Number::wide(largest[b]) >= infinity) {
        auto special = first_special<Number>(from, count * columns_);
        special->element += static_cast<std::size_t>(first * columns_);
        return special;
      }
      blocks[b].factor = scale_rules::factor_of<Number>(encoding_, second, largest[b]);
      scales = put_scale(blocks[b].factor.stored, scale_bytes, scales);
    }
    if (by_steps) take_steps(step, blocks, tables);
    with_wide_vectors([=, columns = columns_, width = width_, encoding = encoding_,
                       code_bytes = code_row_bytes(), of_blocks = blocks.data(),
                       values = each.data(), to = codes + first * code_row_bytes()] {
      for (Index r = 0; r < count; ++r)
        encode_row<Number>(encoding, step, by_steps, from + r * row_bytes, columns, width,
                           of_blocks, values, code_bytes, to + r * code_bytes);
    });
  }
  return std::nullopt;
}

std::optional<Inexact> Encoder::run(Index rows, std::span<std::byte const> weights,
                                    std::span<std::byte> codes, std::span<std::byte> scales,
                                    float largest_of_all) const {
  [[maybe_unused]] Index const bands = (rows + encoding_.block_rows - 1) / encoding_.block_rows;
  RESHARD_EXPECT(static_cast<Index>(weights.size()) == rows * columns_ * bits(weights_) / 8 &&
                 static_cast<Index>(codes.size()) == rows * code_row_bytes() &&
                 static_cast<Index>(scales.size()) == bands * scale_row_bytes());
  return with_number(weights_, [&]<class Number>(Number) {
    return run_as<Number>(rows, weights.data(), codes.data(), scales.data(), largest_of_all);
  });
}

}  // namespace reshard::quant
