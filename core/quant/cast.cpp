#include "core/quant/cast.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/base/error.hpp"
#include "core/quant/convert_element.hpp"
#include "core/quant/short_floats.hpp"
#include "core/quant/wide_vectors.hpp"

namespace reshard::quant {
namespace {

constexpr std::size_t block_elements = 2048;
constexpr std::uint32_t f32_infinity = 0x7f800000U;
constexpr std::uint32_t f32_quiet = 0x00400000U;

using Bytes = std::span<std::byte const>;
using Block = std::array<std::uint32_t, block_elements>;

std::size_t bytes_of(DType dtype) { return static_cast<std::size_t>(bits(dtype)) / 8; }

template <class Code>
Code load(std::byte const* from, std::size_t element) {
  Code code;
  std::memcpy(&code, from + element * sizeof code, sizeof code);
  return code;
}

double value_at(DType dtype, std::byte const* from, std::size_t element) {
  std::uint64_t code = 0;
  std::memcpy(&code, from + element * bytes_of(dtype), bytes_of(dtype));
  return decode(*float_format(dtype), code);
}

/// Codes of F32.
void widen(DType stored, std::byte const* from, std::size_t count, Block& block) {
  std::uint32_t* const to = block.data();
  switch (stored) {
    case DType::f64:
      for (std::size_t i = 0; i < count; ++i)
        to[i] = std::bit_cast<std::uint32_t>(static_cast<float>(load<double>(from, i)));
      return;
    case DType::f32: std::memcpy(to, from, count * sizeof(std::uint32_t)); return;
    case DType::bf16:
      with_wide_vectors([=] {
        for (std::size_t i = 0; i < count; ++i) to[i] = f32_of_bf16(load<std::uint16_t>(from, i));
      });
      return;
    default:
      with_wide_vectors([=] {
        for (std::size_t i = 0; i < count; ++i) {
          std::uint32_t const value = f32_of_f16(load<std::uint16_t>(from, i));
          to[i] = value | if_less(f32_infinity, value & 0x7fffffffU, f32_quiet, 0);
        }
      });
  }
}

/// Whether a finite one of F32 became infinite.
bool overflows(Block const& block, DType wanted, std::byte const* to, std::size_t count) {
  std::uint32_t const infinity = wanted == DType::bf16 ? 0x7f80U : 0x7c00U;
  std::uint32_t found = 0;
  with_wide_vectors([&found, from = block.data(), infinity, to, count] {
    std::uint32_t any = 0;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t const code = load<std::uint16_t>(to, i) & 0x7fffU;
      std::uint32_t const infinite = if_less(code ^ infinity, 1, 1, 0);
      any |= infinite & if_less(from[i] & 0x7fffffffU, f32_infinity, 1, 0);
    }
    found = any;
  });
  return found != 0;
}

/// The first finite element of a block whose result is infinite.
std::optional<std::size_t> first_overflow(DType stored, std::byte const* from, DType wanted,
                                          std::byte const* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (std::isinf(value_at(wanted, to, i)) && std::isfinite(value_at(stored, from, i))) return i;
  return std::nullopt;
}

std::optional<std::size_t> cast_block(DType stored, std::byte const* from, DType wanted,
                                      std::byte* to, std::size_t count, Block& block) {
  widen(stored, from, count, block);
  Bytes const wide = std::as_bytes(std::span(block).first(count));
  if (wanted == DType::f32)
    std::memcpy(to, wide.data(), wide.size());
  else
    round_values(wide, wanted, {to, count * 2});
  bool const look =
      stored == DType::f64 || (wanted != DType::f32 && overflows(block, wanted, to, count));
  return look ? first_overflow(stored, from, wanted, to, count) : std::nullopt;
}

std::optional<Inexact> cast_sums(DType stored, Bytes from, double constant, DType wanted,
                                 std::span<std::byte> to) {
  FloatFormat const source = *float_format(stored);
  FloatFormat const target = *float_format(wanted);
  std::size_t const size = bytes_of(stored);
  for (std::size_t i = 0; i * size < from.size(); ++i) {
    std::uint64_t code = 0;
    std::memcpy(&code, from.data() + i * size, size);
    double const value = decode(source, code);
    std::uint64_t result = convert_element(source, target, code, constant).code;
    if (std::isfinite(value) && std::isinf(decode(target, result))) return Inexact{i, value};
    if (std::isnan(value) && wanted == DType::bf16) result = 0x7fc0;
    std::memcpy(to.data() + i * bytes_of(wanted), &result, bytes_of(wanted));
  }
  return std::nullopt;
}

}  // namespace

bool castable(DType stored, DType wanted) {
  auto const is_short = [](DType dtype) {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
  };
  return (is_short(stored) || stored == DType::f64) && is_short(wanted);
}

std::optional<Inexact> cast_values(DType stored, Bytes from, double constant, DType wanted,
                                   std::span<std::byte> to) {
  RESHARD_EXPECT(castable(stored, wanted) &&
                 from.size() / bytes_of(stored) * bytes_of(wanted) == to.size());
  if (constant != 0) return cast_sums(stored, from, constant, wanted, to);
  Block block;
  std::size_t const elements = to.size() / bytes_of(wanted);
  for (std::size_t done = 0; done < elements; done += block_elements) {
    std::size_t const count = std::min(block_elements, elements - done);
    std::byte const* const at = from.data() + done * bytes_of(stored);
    if (auto const element =
            cast_block(stored, at, wanted, to.data() + done * bytes_of(wanted), count, block))
      return Inexact{done + *element, value_at(stored, at, *element)};
  }
  return std::nullopt;
}

}  // namespace reshard::quant
