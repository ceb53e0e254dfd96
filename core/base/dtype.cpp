#include "core/base/dtype.hpp"

#include <array>

namespace reshard {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array table = {
    Row{DType::boolean, "BOOL", 8},
    Row{DType::f4, "F4", 4},
    Row{DType::f6_e2m3, "F6_E2M3", 6},
    Row{DType::f6_e3m2, "F6_E3M2", 6},
    Row{DType::u8, "U8", 8},
    Row{DType::i8, "I8", 8},
    Row{DType::f8_e5m2, "F8_E5M2", 8},
    Row{DType::f8_e4m3, "F8_E4M3", 8},
    Row{DType::f8_e8m0, "F8_E8M0", 8},
    Row{DType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    Row{DType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    Row{DType::i16, "I16", 16},
    Row{DType::u16, "U16", 16},
    Row{DType::f16, "F16", 16},
    Row{DType::bf16, "BF16", 16},
    Row{DType::i32, "I32", 32},
    Row{DType::u32, "U32", 32},
    Row{DType::f32, "F32", 32},
    Row{DType::c64, "C64", 64},
    Row{DType::f64, "F64", 64},
    Row{DType::i64, "I64", 64},
    Row{DType::u64, "U64", 64},
    Row{DType::c128, "C128", 128},
    Row{DType::c32, "C32", 32},
    Row{DType::f4_x2, "F4_X2", 8},
};

constexpr bool in_enum_order() {
  for (std::size_t i = 0; i < table.size(); ++i)
    if (static_cast<std::size_t>(table[i].dtype) != i) return false;
  return true;
}
static_assert(in_enum_order() && table.size() == static_cast<std::size_t>(last_dtype) + 1);

}  // namespace

int bits(DType dtype) { return table[static_cast<std::size_t>(dtype)].bits; }

std::string_view name(DType dtype) { return table[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view word) {
  for (Row const& row : table)
    if (row.name == word) return row.dtype;
  return std::nullopt;
}

}  // namespace reshard
