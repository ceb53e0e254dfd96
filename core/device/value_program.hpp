#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/dtype.hpp"
#include "core/device/program.hpp"
#include "core/quant/dequantise.hpp"

namespace reshard {

/// The treatment of a value that the wanted dtype cannot represent.
enum class Rounding : std::uint8_t {
  exact,         ///< it is reported
  nearest_even,  ///< it is rounded once, from the exact sum with the constant; too large ones
                 ///< become infinity (IEEE 754)
};

/// quant::convert() on a device: `count` elements from byte `from` on become elements from byte
/// `to` on. Both may be any address. Pre: quant::convertible(stored, wanted); constant is finite;
/// count is at most 2^40.
struct ConvertRequest {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  DType stored = DType::bf16;
  DType wanted = DType::bf16;
  double constant = 0;
  std::uint64_t count = 0;
  Rounding rounding = Rounding::exact;
};

/// quant::Dequantiser::run() of `part` on a device; the stored bytes are those that needs_of(part)
/// names, each from its offset on. `decoder` is used during the call only.
struct DequantiseRequest {
  quant::Dequantiser const* decoder = nullptr;
  quant::RowPart part;
  std::uint64_t codes = 0;
  std::uint64_t scales = 0;
  std::uint64_t seconds = 0;
  std::uint64_t zero_points = 0;
  std::uint64_t to = 0;
};

/// The first inexact element of the converts of one call: request `request` of it, counted from the
/// beginning, and the element in that request.
struct InexactPlace {
  std::uint64_t request = 0;
  std::uint64_t element = 0;
};

/// Adds launches to a program. Results are bit for bit those of quant::convert and
/// quant::Dequantiser, NaNs included, but an inexact element and those after it are rounded to
/// nearest even instead of being left out. The converts write into the verdict_bytes bytes from
/// `verdict` on (a multiple of 8, counted from LaunchPlaces::to), which must be clear before:
/// afterwards inexact_of() reports whether one was inexact, and where first. Launches read no byte
/// that a request does not name, and write none.
///
/// Pre: no byte that one of the requests of a call reads is written by one of them; no byte is
/// written twice.
void add_converts(Program& program, std::span<ConvertRequest const> requests,
                  std::uint64_t verdict);
void add_dequantises(Program& program, std::span<DequantiseRequest const> requests);

/// The size of a verdict in bytes, and its content before (zeros) and after a launch.
inline constexpr std::uint64_t verdict_bytes = 16;
void clear_verdict(std::byte* verdict);
std::optional<InexactPlace> inexact_of(std::byte const* verdict);

}  // namespace reshard
