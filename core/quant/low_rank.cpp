#include "core/quant/low_rank.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/base/error.hpp"
#include "core/quant/rounded.hpp"

// This file is compiled with -ffp-contract=off (CMakeLists.txt): no product and sum are fused.

namespace reshard::quant {
namespace {

/// One panel against Rows rows, `Lanes` sums side by side: `to` is [Rows, panel_columns]. Vectors
/// are those of the compilers' extension. How many lanes there are decides about no value.
template <std::size_t Rows, std::size_t Lanes>
[[gnu::always_inline]] inline void panel_products(float const* rows, Index row_stride, Index rank,
                                                  float const* panel, float* to) {
  using Vector [[gnu::vector_size(sizeof(float) * Lanes)]] = float;
  constexpr std::size_t parts = panel_columns / Lanes;
  Vector sums[Rows][parts] = {};  // NOLINT: elements of a std::array would stay in memory
  for (Index k = 0; k < rank; ++k)
    for (std::size_t p = 0; p < parts; ++p) {
      Vector values;
      std::memcpy(&values, panel + k * panel_columns + p * Lanes, sizeof values);
      for (std::size_t i = 0; i < Rows; ++i)
        sums[i][p] += values * rows[static_cast<Index>(i) * row_stride + k];
    }
  std::memcpy(to, sums, sizeof sums);
}

/// `row_count` rows against one panel: `to` is [row_count, panel_columns].
template <std::size_t Tile, std::size_t Lanes>
[[gnu::always_inline]] inline void all_rows(float const* rows, Index row_stride, Index row_count,
                                            Index rank, float const* panel, float* to) {
  constexpr auto tile = static_cast<Index>(Tile);
  Index row = 0;
  for (; row + tile <= row_count; row += tile)
    panel_products<Tile, Lanes>(rows + row * row_stride, row_stride, rank, panel,
                                to + row * panel_columns);
  for (; row < row_count; ++row)
    panel_products<1, Lanes>(rows + row * row_stride, row_stride, rank, panel,
                             to + row * panel_columns);
}

void all_rows_anywhere(float const* rows, Index row_stride, Index row_count, Index rank,
                       float const* panel, float* to) {
  all_rows<2, 4>(rows, row_stride, row_count, rank, panel, to);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void all_rows_avx2(float const* rows, Index row_stride, Index row_count,
                                           Index rank, float const* panel, float* to) {
  all_rows<4, 8>(rows, row_stride, row_count, rank, panel, to);
}
auto* const rows_of_panel = __builtin_cpu_supports("avx2") != 0 ? all_rows_avx2 : all_rows_anywhere;
#else
auto* const rows_of_panel = all_rows_anywhere;
#endif

std::uint32_t canonical_bits(float value) {
  return value != value ? 0x7fc00000U : std::bit_cast<std::uint32_t>(value);
}

struct Float32 {
  using Stored = std::uint32_t;
  static float value(Stored bits) { return std::bit_cast<float>(bits); }
  static Stored rounded(float value) { return canonical_bits(value); }
  static constexpr Stored exponent = 0x7f800000U;
};

struct BFloat16 {
  using Stored = std::uint16_t;
  static float value(Stored bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
  static Stored rounded(float value) { return bf16_of(canonical_bits(value)); }
  static constexpr Stored exponent = 0x7f80U;
};

struct Float16 {
  using Stored = std::uint16_t;
  static float value(Stored bits) {
    std::uint32_t const sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16U;
    std::uint32_t const size = bits & 0x7fffU;
    if (size >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | (size & 0x3ffU) << 13U);
    // Subnormal ones have steps of 2^-24, others an exponent that is 112 smaller.
    if (size < 0x400U) {
      float const value = static_cast<float>(size) * 0x1p-24F;
      return sign == 0 ? value : -value;
    }
    return std::bit_cast<float>(sign | ((size << 13U) + (112U << 23U)));
  }
  static Stored rounded(float value) { return f16_of(canonical_bits(value)); }
  static constexpr Stored exponent = 0x7c00U;
};

template <class Format>
void widen_as(std::byte const* from, Index from_stride, Index count, float* to, Index to_stride) {
  using Stored = typename Format::Stored;
  for (Index i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, from + i * from_stride * static_cast<Index>(sizeof(Stored)),
                sizeof stored);
    to[i * to_stride] = Format::value(stored);
  }
}

template <class Format>
bool finite(typename Format::Stored bits) {
  return (bits & Format::exponent) != Format::exponent;
}

/// Whether some of `count` elements is infinite or no number: an exponent of ones carries into the
/// sign.
template <class Format>
bool any_not_finite(std::byte const* weights, Index stride, Index count) {
  using Stored = typename Format::Stored;
  constexpr std::uint32_t exponent = Format::exponent;
  constexpr auto lowest = static_cast<Stored>(exponent & (~exponent + 1U));
  constexpr auto carry = static_cast<Stored>(exponent + lowest);
  Stored seen = 0;
  for (Index i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, weights + i * stride * static_cast<Index>(sizeof stored), sizeof stored);
    seen = static_cast<Stored>(seen | static_cast<Stored>((stored & Format::exponent) + lowest));
  }
  return (seen & carry) != 0;
}

/// The addends of a row, and what the sums are multiplied by.
struct Addends {
  float const* delta = nullptr;
  float scale = 1;
  float const* factors = nullptr;  ///< nullptr: none
  Index factor_step = 0;
  Addends from(Index i) const {
    return {delta + i, scale, factors == nullptr ? nullptr : factors + i * factor_step,
            factor_step};
  }
};

template <class Format, bool Normalised>
void add_block(std::byte* weights, Index stride, Index count, Addends const& of) {
  using Stored = typename Format::Stored;
  auto const add = [of](std::byte* at, Index i) {
    Stored stored;
    std::memcpy(&stored, at, sizeof stored);
    float sum = Format::value(stored) + of.scale * of.delta[i];
    if constexpr (Normalised) sum = of.factors[i * of.factor_step] * sum;
    stored = Format::rounded(sum);
    std::memcpy(at, &stored, sizeof stored);
  };
  constexpr auto size = static_cast<Index>(sizeof(Stored));
  if (stride == 1)
    for (Index i = 0; i < count; ++i) add(weights + i * size, i);
  else
    for (Index i = 0; i < count; ++i) add(weights + i * stride * size, i);
}

template <class Format>
std::optional<Index> add_as(std::byte* weights, Index stride, Index count, Addends const& of) {
  using Stored = typename Format::Stored;
  constexpr Index block = 512;
  std::array<Stored, block> before;
  Index const step = stride * static_cast<Index>(sizeof(Stored));
  std::optional<Index> first;
  for (Index begin = 0; begin < count; begin += block) {
    Index const here = std::min(block, count - begin);
    std::byte* const at = weights + begin * step;
    if (stride == 1)
      std::memcpy(before.data(), at, static_cast<std::size_t>(here) * sizeof(Stored));
    else
      for (Index i = 0; i < here; ++i)
        std::memcpy(&before[static_cast<std::size_t>(i)], at + i * step, sizeof(Stored));
    if (of.factors == nullptr)
      add_block<Format, false>(at, stride, here, of.from(begin));
    else
      add_block<Format, true>(at, stride, here, of.from(begin));
    if (first || !any_not_finite<Format>(at, stride, here)) continue;
    for (Index i = 0; !first && i < here; ++i) {
      Stored after;
      std::memcpy(&after, at + i * step, sizeof after);
      if (finite<Format>(before[static_cast<std::size_t>(i)]) && !finite<Format>(after))
        first = begin + i;
    }
  }
  return first;
}

}  // namespace

Panels::Panels(std::span<float const> values, Index columns, Index rank)
    : columns_(columns), rank_(rank) {
  RESHARD_EXPECT(static_cast<Index>(values.size()) == columns * rank);
  Index const panels = (columns + panel_columns - 1) / panel_columns;
  values_.assign(static_cast<std::size_t>(panels * rank * panel_columns), 0.0F);
  for (Index j = 0; j < columns; ++j) {
    float* const to =
        values_.data() + (j / panel_columns * rank * panel_columns) + j % panel_columns;
    for (Index k = 0; k < rank; ++k)
      to[k * panel_columns] = values[static_cast<std::size_t>(j * rank + k)];
  }
}

void low_rank_products(float const* rows, Index row_stride, Index row_count, Panels const& columns,
                       Index first, Index count, float* to, Index to_stride) {
  RESHARD_EXPECT(0 <= first && first + count <= columns.columns());
  constexpr Index rows_at_once = 32;
  std::array<float, rows_at_once * panel_columns> sums;
  Index const end = first + count;
  for (Index begin = first / panel_columns * panel_columns; begin < end; begin += panel_columns) {
    float const* const panel = columns.panel(begin / panel_columns);
    Index const from = std::max(first, begin);
    auto const bytes =
        static_cast<std::size_t>(std::min(end, begin + panel_columns) - from) * sizeof(float);
    for (Index row = 0; row < row_count; row += rows_at_once) {
      Index const rows_here = std::min(rows_at_once, row_count - row);
      rows_of_panel(rows + row * row_stride, row_stride, rows_here, columns.rank(), panel,
                    sums.data());
      for (Index i = 0; i < rows_here; ++i)
        std::memcpy(to + (row + i) * to_stride + (from - first),
                    sums.data() + i * panel_columns + (from - begin), bytes);
    }
  }
}

bool mergeable(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

void widen(DType dtype, std::byte const* from, Index from_stride, Index count, float* to,
           Index to_stride) {
  RESHARD_EXPECT(mergeable(dtype));
  switch (dtype) {
    case DType::f32: return widen_as<Float32>(from, from_stride, count, to, to_stride);
    case DType::bf16: return widen_as<BFloat16>(from, from_stride, count, to, to_stride);
    default: return widen_as<Float16>(from, from_stride, count, to, to_stride);
  }
}

static std::optional<Index> add_to(DType dtype, std::byte* weights, Index stride, Index count,
                                   Addends const& of) {
  RESHARD_EXPECT(mergeable(dtype));
  switch (dtype) {
    case DType::f32: return add_as<Float32>(weights, stride, count, of);
    case DType::bf16: return add_as<BFloat16>(weights, stride, count, of);
    default: return add_as<Float16>(weights, stride, count, of);
  }
}

std::optional<Index> add_scaled(DType dtype, std::byte* weights, Index stride, Index count,
                                float const* delta, float scale) {
  return add_to(dtype, weights, stride, count, {delta, scale});
}

std::optional<Index> add_normalised(DType dtype, std::byte* weights, Index stride, Index count,
                                    float const* delta, float scale, float const* factors,
                                    Index factor_step) {
  return add_to(dtype, weights, stride, count, {delta, scale, factors, factor_step});
}

float length_of_sum(float const* weights, float const* delta, Index count, float scale) {
  double squares = 0;
  for (Index i = 0; i < count; ++i) {
    auto const sum = static_cast<double>(weights[i] + scale * delta[i]);
    squares += sum * sum;
  }
  return static_cast<float>(std::sqrt(squares));
}

}  // namespace reshard::quant
