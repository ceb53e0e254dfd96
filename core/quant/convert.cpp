#include "core/quant/convert.hpp"

#include <array>
#include <cstdint>
#include <cstring>

#include "core/base/error.hpp"
#include "core/quant/convert_element.hpp"
#include "core/quant/rounded.hpp"

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

/// A BF16 is the upper half of the F32 of the same value.
void widen(Bytes from, std::span<std::byte> to) {
  for (std::size_t i = 0; i < from.size() / 2; ++i) {
    auto const code = static_cast<std::uint32_t>(load<2>(from.data() + 2 * i)) << 16U;
    std::memcpy(to.data() + 4 * i, &code, sizeof code);
  }
}

/// Whether every lower half was zero, so that nothing was lost.
bool narrow(Bytes from, std::span<std::byte> to) {
  std::uint32_t lost = 0;
  for (std::size_t i = 0; i < to.size() / 2; ++i) {
    auto const code = static_cast<std::uint32_t>(load<4>(from.data() + 4 * i));
    auto const upper = static_cast<std::uint16_t>(code >> 16U);
    lost |= code & 0xffffU;
    std::memcpy(to.data() + 2 * i, &upper, sizeof upper);
  }
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
    if constexpr (source == formats::bf16 && target == formats::f32)
      return widen(from, to), std::nullopt;
    if constexpr (source == formats::f32 && target == formats::bf16)
      if (narrow(from, to)) return std::nullopt;  // else the first loss is searched
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
  for (std::size_t i = 0; i < to.size() / sizeof(std::uint16_t); ++i) {
    std::uint32_t value = 0;
    std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
    std::uint16_t const rounded = wanted == DType::bf16 ? bf16_of(value) : f16_of(value);
    std::memcpy(to.data() + i * sizeof rounded, &rounded, sizeof rounded);
  }
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
