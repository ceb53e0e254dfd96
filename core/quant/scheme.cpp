#include "core/quant/scheme.hpp"

#include <fmt/format.h>

#include "core/quant/number_formats.hpp"

namespace reshard::quant {
namespace {

/// Products stay exact in a double only up to 24 bits of a scale.
bool has_short_float(DType dtype) {
  auto const format = float_format(dtype);
  return format && format->fraction_bits <= formats::f32.fraction_bits;
}

bool is_scale(DType dtype) {
  return dtype == DType::u8 || dtype == DType::f8_e8m0 || has_short_float(dtype);
}

}  // namespace

int code_bits(Scheme const& scheme) {
  if (scheme.codes == CodeFormat::e2m1 || scheme.codes == CodeFormat::i4) return 4;
  return scheme.codes == CodeFormat::integer ? scheme.integer_bits : 8;
}

bool is_by_columns(Scheme const& scheme, Companions const& companions) {
  return scheme.order != CodeOrder::columns || scheme.codes == CodeFormat::i4 ||
         scheme.zero_offset != 0 || scheme.divisor != 1 || companions.groups || companions.factors;
}

std::optional<std::string> problem_of(Scheme const& scheme, Companions const& companions) {
  bool const is_integer = scheme.codes == CodeFormat::integer;
  auto const zeros = companions.zero_points;
  if (is_integer && (scheme.integer_bits < 1 || scheme.integer_bits > 8))
    return fmt::format("codes of {} bits are not 1 to 8", scheme.integer_bits);
  if (scheme.block_rows < 0 || scheme.block_columns < 0)
    return fmt::format("a block of {} x {}", scheme.block_rows, scheme.block_columns);
  if (!is_scale(companions.scale))
    return fmt::format("a scale of {} is not known", name(companions.scale));
  if (zeros && zeros != DType::i32 && zeros != DType::i8)
    return fmt::format("zero points of {} are not known", name(*zeros));
  bool const is_transposed =
      scheme.order == CodeOrder::interleaved || scheme.order == CodeOrder::rows;
  if (scheme.order == CodeOrder::interleaved && !(is_integer && scheme.integer_bits == 4))
    return "the order of interleaved words is of integers of 4 bits";
  if (scheme.order == CodeOrder::row_pairs && code_bits(scheme) != 4)
    return "two rows in a byte need codes of 4 bits";
  if (is_transposed && !is_integer) return "words down the rows need packed integers";
  if (companions.factors && !has_short_float(*companions.factors))
    return fmt::format("factors of {} are not known", name(*companions.factors));
  if (zeros == DType::i32 && (!is_integer || (scheme.block_rows != 1 && !is_transposed)))
    return "packed zero points need packed codes and a scale for each row";
  if (scheme.second == SecondScale::none) return std::nullopt;
  if (!has_short_float(companions.second))
    return fmt::format("a second scale of {} is not known", name(companions.second));
  return std::nullopt;
}

}  // namespace reshard::quant
