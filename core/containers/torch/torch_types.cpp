#include "core/containers/torch/torch_types.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace reshard::pickle {
namespace {

constexpr std::array types = {
    TorchType{DType::boolean, "bool", "BoolStorage"},
    TorchType{DType::u8, "uint8", "ByteStorage"},
    TorchType{DType::i8, "int8", "CharStorage"},
    TorchType{DType::i16, "int16", "ShortStorage"},
    TorchType{DType::i32, "int32", "IntStorage"},
    TorchType{DType::i64, "int64", "LongStorage"},
    TorchType{DType::f16, "float16", "HalfStorage"},
    TorchType{DType::bf16, "bfloat16", "BFloat16Storage"},
    TorchType{DType::f32, "float32", "FloatStorage"},
    TorchType{DType::f64, "float64", "DoubleStorage"},
    TorchType{DType::c64, "complex64", "ComplexFloatStorage"},
    TorchType{DType::c128, "complex128", "ComplexDoubleStorage"},
    TorchType{DType::c32, "complex32", ""},
    TorchType{DType::f4_x2, "float4_e2m1fn_x2", ""},
    TorchType{DType::u16, "uint16", ""},
    TorchType{DType::u32, "uint32", ""},
    TorchType{DType::u64, "uint64", ""},
    TorchType{DType::f8_e4m3, "float8_e4m3fn", ""},
    TorchType{DType::f8_e5m2, "float8_e5m2", ""},
    TorchType{DType::f8_e4m3fnuz, "float8_e4m3fnuz", ""},
    TorchType{DType::f8_e5m2fnuz, "float8_e5m2fnuz", ""},
    TorchType{DType::f8_e8m0, "float8_e8m0fnu", ""},
};

}  // namespace

TorchType const* torch_type(DType dtype) {
  for (TorchType const& type : types)
    if (type.dtype == dtype) return &type;
  return nullptr;
}

std::optional<DType> dtype_from_torch_name(std::string_view name) {
  for (TorchType const& type : types)
    if (type.name == name) return type.dtype;
  return std::nullopt;
}

std::optional<DType> dtype_from_storage_class(std::string_view name) {
  for (TorchType const& type : types)
    if (!type.storage_class.empty() && type.storage_class == name) return type.dtype;
  return std::nullopt;
}

std::vector<Index> row_major_strides(std::span<Index const> shape) {
  std::vector<Index> strides(shape.size());
  Index stride = 1;
  for (std::size_t d = shape.size(); d > 0; --d) {
    strides[d - 1] = stride;
    stride =
        checked_mul(stride, std::max<Index>(shape[d - 1], 1), ErrorKind::source, "tensor strides");
  }
  return strides;
}

StorageRef own_storage(DType dtype, Index elements, std::size_t number) {
  TorchType const* const type = torch_type(dtype);
  RESHARD_EXPECT(type != nullptr && elements >= 0);
  bool const untyped = type->storage_class.empty();
  auto const count = static_cast<std::uint64_t>(elements);
  auto const unit = untyped ? static_cast<std::uint64_t>(bits(dtype)) / 8 : 1;
  return {.key = std::to_string(number),
          .dtype = untyped ? DType::u8 : dtype,
          .count = checked_mul(count, unit, ErrorKind::source, "storage size"),
          .location = "cpu",
          .untyped = untyped};
}

NodeId add_ordered_dict(Document& document, std::vector<NodeId> pairs) {
  Node node;
  node.kind = Kind::reduce;
  node.callable = document.add_global("collections", "OrderedDict");
  node.arguments = document.add_tuple();
  node.pairs = std::move(pairs);
  return document.add(std::move(node));
}

}  // namespace reshard::pickle
