#include "core/quant/number_formats.hpp"

namespace reshard::quant {

std::optional<FloatFormat> float_format(DType dtype) {
  switch (dtype) {
    case DType::f64: return formats::f64;
    case DType::f32: return formats::f32;
    case DType::bf16: return formats::bf16;
    case DType::f16: return formats::f16;
    case DType::f8_e5m2: return formats::e5m2;
    case DType::f8_e4m3: return formats::e4m3;
    default: return std::nullopt;
  }
}

}  // namespace reshard::quant
