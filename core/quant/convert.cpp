#include "core/quant/convert.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/base/error.hpp"
#include "core/quant/convert_element.hpp"
#include "core/quant/rounded.hpp"
#include "core/quant/short_floats.hpp"
#include "core/quant/wide_vectors.hpp"

namespace reshard::quant {
namespace {

// The program runs on little-endian machines only: the low bytes of a code are the bytes of its
// element.
template <std::size_t bytes>
std::uint64_t load(std::byte const* at) {
  std::uint64_t code = 0;
  std::memcpy(&code, at, bytes);
  return code;
}

using Bytes = std::span<std::byte const>;

/// The formats are template arguments so that the shifts are constants.
template <FloatFormat source, FloatFormat target>
std::optional<Inexact> run_each(Bytes from, double constant, std::span<std::byte> to) {
  constexpr auto source_bytes = static_cast<std::size_t>(source.bits() / 8);
  constexpr auto target_bytes = static_cast<std::size_t>(target.bits() / 8);
  std::size_t const count = from.size() / source_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t const code = load<source_bytes>(from.data() + i * source_bytes);
    Encoded const encoded = convert_element(source, target, code, constant);
    if (!encoded.exact) return Inexact{i, decode(source, code)};
    std::memcpy(to.data() + i * target_bytes, &encoded.code, target_bytes);
  }
  return std::nullopt;
}

/// A format of 16 or 32 bits, by way of F32.
template <FloatFormat format>
struct ShortFloat {
  using Code = std::conditional_t<format.bits() == 16, std::uint16_t, std::uint32_t>;
  static std::uint32_t widened(Code code) {
    if constexpr (format == formats::bf16) return f32_of_bf16(code);
    if constexpr (format == formats::f16) return f32_of_f16(code);
    return code;
  }
  static std::uint32_t kept(std::uint32_t f32) {
    if constexpr (format == formats::bf16) return kept_bf16(f32);
    if constexpr (format == formats::f16) return kept_f16(f32);
    return f32;
  }
  static std::uint32_t lost(std::uint32_t kept, std::uint32_t f32) {
    if constexpr (format == formats::bf16) return lost_by_bf16(kept, f32);
    if constexpr (format == formats::f16) return lost_by_f16(kept, f32);
    return 0;
  }
};

/// Whether every value came back, so that nothing was lost.
template <FloatFormat source, FloatFormat target>
bool keep_values(Bytes from, std::span<std::byte> to) {
  using From = typename ShortFloat<source>::Code;
  using To = typename ShortFloat<target>::Code;
  std::uint32_t lost = 0;
  constexpr Vectors most = target == formats::bf16 && source == formats::f32
                               ? Vectors::avx2  // faster than the widest ones
                               : Vectors::avx512;
  with_wide_vectors<most>(
      [&lost, at = from.data(), into = to.data(), count = to.size() / sizeof(To)] {
        std::uint32_t different = 0;
        for (std::size_t i = 0; i < count; ++i) {
          From code;
          std::memcpy(&code, at + i * sizeof code, sizeof code);
          std::uint32_t const value = ShortFloat<source>::widened(code);
          std::uint32_t const kept = ShortFloat<target>::kept(value);
          different |= ShortFloat<target>::lost(kept, value);
          auto const stored = static_cast<To>(kept);
          std::memcpy(into + i * sizeof stored, &stored, sizeof stored);
        }
        lost = different;
      });
  return lost == 0;
}

/// A format of 8 bits has 256 codes: each is converted once. Whether all conversions are exact;
/// else nothing is written.
template <FloatFormat source, FloatFormat target>
bool look_up(Bytes from, std::span<std::byte> to) {
  constexpr auto target_bytes = static_cast<std::size_t>(target.bits() / 8);
  std::array<std::array<std::byte, target_bytes>, 256> codes;
  for (std::size_t code = 0; code < codes.size(); ++code) {
    Encoded const encoded = convert_element(source, target, code, 0);
    if (!encoded.exact) return false;
    std::memcpy(codes[code].data(), &encoded.code, target_bytes);
  }
  for (std::size_t i = 0; i < from.size(); ++i)
    std::memcpy(to.data() + i * target_bytes, codes[static_cast<std::size_t>(from[i])].data(),
                target_bytes);
  return true;
}

template <FloatFormat source, FloatFormat target>
std::optional<Inexact> run(Bytes from, double constant, std::span<std::byte> to) {
  RESHARD_EXPECT(from.size() / static_cast<std::size_t>(source.bits() / 8) *
                     static_cast<std::size_t>(target.bits() / 8) ==
                 to.size());
  if (constant == 0) {
    if constexpr (source.bits() != 8 && source != formats::f64 && target != formats::f64)
      if (keep_values<source, target>(from, to)) return std::nullopt;  // else a loss is searched
    if constexpr (source.bits() == 8)
      if (look_up<source, target>(from, to)) return std::nullopt;
  }
  return run_each<source, target>(from, constant, to);
}

template <FloatFormat source>
std::optional<Inexact> run_to(DType wanted, Bytes from, double constant, std::span<std::byte> to) {
  switch (wanted) {
    case DType::f64: return run<source, formats::f64>(from, constant, to);
    case DType::f32: return run<source, formats::f32>(from, constant, to);
    case DType::bf16: return run<source, formats::bf16>(from, constant, to);
    default: return run<source, formats::f16>(from, constant, to);
  }
}

}  // namespace

void round_values(Bytes from, DType wanted, std::span<std::byte> to) {
  RESHARD_EXPECT((wanted == DType::bf16 || wanted == DType::f16) && from.size() == 2 * to.size());
  auto const round_each = [at = from.data(), into = to.data(), count = to.size() / 2](auto round) {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t value;
      std::memcpy(&value, at + i * sizeof value, sizeof value);
      std::uint16_t const rounded = round(value);
      std::memcpy(into + i * sizeof rounded, &rounded, sizeof rounded);
    }
  };
  if (wanted == DType::bf16)  // slower with the widest ones
    with_wide_vectors<Vectors::avx2>(
        [=] { round_each([](std::uint32_t value) { return bf16_of(value); }); });
  else
    with_wide_vectors([=] { round_each([](std::uint32_t value) { return f16_of(value); }); });
}

bool convertible(DType stored, DType wanted) {
  auto const to = float_format(wanted);
  return float_format(stored) && to && to->bits() >= 16;
}

std::optional<Inexact> convert(DType stored, Bytes from, double constant, DType wanted,
                               std::span<std::byte> to) {
  RESHARD_EXPECT(convertible(stored, wanted));
  switch (stored) {
    case DType::f64: return run_to<formats::f64>(wanted, from, constant, to);
    case DType::f32: return run_to<formats::f32>(wanted, from, constant, to);
    case DType::bf16: return run_to<formats::bf16>(wanted, from, constant, to);
    case DType::f16: return run_to<formats::f16>(wanted, from, constant, to);
    case DType::f8_e5m2: return run_to<formats::e5m2>(wanted, from, constant, to);
    default: return run_to<formats::e4m3>(wanted, from, constant, to);
  }
}

}  // namespace reshard::quant
