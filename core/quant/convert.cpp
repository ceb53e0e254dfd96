#include "core/quant/convert.hpp"

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
std::optional<Inexact> run(Bytes from, double constant, std::span<std::byte> to) {
  constexpr auto source_bytes = static_cast<std::size_t>(source.bits() / 8);
  constexpr auto target_bytes = static_cast<std::size_t>(target.bits() / 8);
  std::size_t const count = from.size() / source_bytes;
  RESHARD_EXPECT(count * source_bytes == from.size() && count * target_bytes == to.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t const code = load<source_bytes>(from.data() + i * source_bytes);
    Encoded const encoded = convert_element(source, target, code, constant);
    if (!encoded.exact) return Inexact{i, decode(source, code)};
    std::memcpy(to.data() + i * target_bytes, &encoded.code, target_bytes);
  }
  return std::nullopt;
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
