#include "core/containers/hdf5/file_types.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace reshard::hdf5 {
namespace {

/// The bit layout of a floating-point type, as H5Tget_fields, H5Tget_ebias and H5Tget_size return
/// it.
struct FloatBits {
  DType dtype;
  std::size_t sign, exponent, exponent_bits, mantissa, mantissa_bits, bias, size_bytes;
};

constexpr std::array float_bits = {
    FloatBits{DType::f16, 15, 10, 5, 0, 10, 15, 2},
    FloatBits{DType::bf16, 15, 7, 8, 0, 7, 127, 2},
    FloatBits{DType::f32, 31, 23, 8, 0, 23, 127, 4},
    FloatBits{DType::f64, 63, 52, 11, 0, 52, 1023, 8},
};

bool little_endian(hid_t type) {
  return H5Tget_size(type) == 1 || H5Tget_order(type) == H5T_ORDER_LE;
}

bool fills_its_bytes(hid_t type) {
  return H5Tget_precision(type) == 8 * H5Tget_size(type) && H5Tget_offset(type) == 0;
}

TypeFound integer_type(hid_t type) {
  if (!little_endian(type)) return {std::nullopt, "it is a big-endian integer"};
  bool const is_signed = H5Tget_sign(type) == H5T_SGN_2;
  if (fills_its_bytes(type)) {
    switch (H5Tget_size(type)) {
      case 1: return {is_signed ? DType::i8 : DType::u8, {}};
      case 2: return {is_signed ? DType::i16 : DType::u16, {}};
      case 4: return {is_signed ? DType::i32 : DType::u32, {}};
      case 8: return {is_signed ? DType::i64 : DType::u64, {}};
      default: break;
    }
  }
  return {std::nullopt, fmt::format("it is an integer of {} bits in {} bytes",
                                    H5Tget_precision(type), H5Tget_size(type))};
}

TypeFound float_type(hid_t type) {
  if (!little_endian(type)) return {std::nullopt, "it is a big-endian floating-point number"};
  FloatBits found{};
  found.size_bytes = H5Tget_size(type);
  found.bias = H5Tget_ebias(type);
  H5Tget_fields(type, &found.sign, &found.exponent, &found.exponent_bits, &found.mantissa,
                &found.mantissa_bits);
  for (FloatBits const& known : float_bits)
    if (found.sign == known.sign && found.exponent == known.exponent &&
        found.exponent_bits == known.exponent_bits && found.mantissa == known.mantissa &&
        found.mantissa_bits == known.mantissa_bits && found.bias == known.bias &&
        found.size_bytes == known.size_bytes && fills_its_bytes(type) &&
        H5Tget_norm(type) == H5T_NORM_IMPLIED)
      return {known.dtype, {}};
  return {
      std::nullopt,
      fmt::format(
          "it is a floating-point number of {} bytes with {} bits of exponent and {} of mantissa",
          found.size_bytes, found.exponent_bits, found.mantissa_bits)};
}

/// A member's name, freed as libhdf5 requires it.
std::string member_name(hid_t type, unsigned member) {
  char* const text = H5Tget_member_name(type, member);
  if (text == nullptr) return {};
  std::string name = text;
  H5free_memory(text);
  return name;
}

/// numpy's bool, as h5py writes it: an enum of one byte with FALSE = 0 and TRUE = 1.
TypeFound enum_type(hid_t type) {
  std::uint8_t no = 1;
  std::uint8_t yes = 0;
  bool const is_boolean = H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 &&
                          member_name(type, 0) == "FALSE" && member_name(type, 1) == "TRUE" &&
                          H5Tget_member_value(type, 0, &no) >= 0 &&
                          H5Tget_member_value(type, 1, &yes) >= 0 && no == 0 && yes == 1;
  if (is_boolean) return {DType::boolean, {}};
  return {std::nullopt, "it is an enumeration other than FALSE = 0, TRUE = 1"};
}

/// numpy's complex, as h5py writes it: a compound of two equal floats, r and i.
TypeFound compound_type(hid_t type) {
  TypeFound const refused = {std::nullopt,
                             "it is a compound other than a complex number of r and i"};
  if (H5Tget_nmembers(type) != 2 || member_name(type, 0) != "r" || member_name(type, 1) != "i")
    return refused;
  Handle const real(H5Tget_member_type(type, 0), H5Tclose);
  Handle const imaginary(H5Tget_member_type(type, 1), H5Tclose);
  if (real.id() < 0 || imaginary.id() < 0 || H5Tget_class(real.id()) != H5T_FLOAT ||
      H5Tequal(real.id(), imaginary.id()) <= 0)
    return refused;
  std::size_t const size = H5Tget_size(real.id());
  if (H5Tget_size(type) != 2 * size || H5Tget_member_offset(type, 0) != 0 ||
      H5Tget_member_offset(type, 1) != size)
    return refused;
  switch (float_type(real.id()).dtype.value_or(DType::u8)) {
    case DType::f16: return {DType::c32, {}};
    case DType::f32: return {DType::c64, {}};
    case DType::f64: return {DType::c128, {}};
    default: return refused;
  }
}

std::string_view class_words(H5T_class_t kind) {
  switch (kind) {
    case H5T_STRING: return "it holds strings";
    case H5T_BITFIELD: return "it is a bit field";
    case H5T_OPAQUE: return "its type is opaque";
    case H5T_REFERENCE: return "it holds references";
    case H5T_VLEN: return "its elements have variable length";
    case H5T_ARRAY: return "its elements are arrays";
    case H5T_TIME: return "it holds times";
    default: return "its type is unknown";
  }
}

/// How many elements share how many bytes.
struct Packing {
  std::uint64_t elements, bytes;
};

Packing packing(DType dtype) {
  auto const width = static_cast<std::uint64_t>(bits(dtype));
  if (width >= 8) return {1, 1};
  std::uint64_t const common = std::gcd(width, std::uint64_t{8});
  return {8 / common, width / common};
}

}  // namespace

hid_t FileTypes::of(DType dtype) {
  std::optional<Handle>& made = made_[static_cast<std::size_t>(dtype)];
  if (!made) made.emplace(make(dtype));
  return made->id();
}

Handle FileTypes::make(DType dtype) const {
  auto const copy = [&](hid_t standard) {
    return calls_.take(H5Tcopy(standard), H5Tclose, "copy a type");
  };
  switch (dtype) {
    case DType::i8: return copy(H5T_STD_I8LE);
    case DType::i16: return copy(H5T_STD_I16LE);
    case DType::u16: return copy(H5T_STD_U16LE);
    case DType::i32: return copy(H5T_STD_I32LE);
    case DType::u32: return copy(H5T_STD_U32LE);
    case DType::i64: return copy(H5T_STD_I64LE);
    case DType::u64: return copy(H5T_STD_U64LE);
    case DType::f32: return copy(H5T_IEEE_F32LE);
    case DType::f64: return copy(H5T_IEEE_F64LE);
    case DType::f16: return make_half(dtype);
    case DType::bf16: return make_half(dtype);
    case DType::c32: return make_complex(make_half(DType::f16).id());
    case DType::c64: return make_complex(H5T_IEEE_F32LE);
    case DType::c128: return make_complex(H5T_IEEE_F64LE);
    default: return copy(H5T_STD_U8LE);
  }
}

Handle FileTypes::make_half(DType dtype) const {
  FloatBits const& half = float_bits[dtype == DType::f16 ? 0 : 1];
  Handle type = calls_.take(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "copy a type");
  calls_.done(H5Tset_fields(type.id(), half.sign, half.exponent, half.exponent_bits, half.mantissa,
                            half.mantissa_bits),
              "set the bits of a type");
  calls_.done(H5Tset_size(type.id(), half.size_bytes), "set the size of a type");
  calls_.done(H5Tset_ebias(type.id(), half.bias), "set the bias of a type");
  return type;
}

Handle FileTypes::make_complex(hid_t part) const {
  std::size_t const size = H5Tget_size(part);
  Handle type = calls_.take(H5Tcreate(H5T_COMPOUND, 2 * size), H5Tclose, "create a compound type");
  calls_.done(H5Tinsert(type.id(), "r", 0, part), "insert a member");
  calls_.done(H5Tinsert(type.id(), "i", size, part), "insert a member");
  return type;
}

TypeFound dtype_of_type(hid_t type) {
  switch (H5T_class_t const kind = H5Tget_class(type)) {
    case H5T_INTEGER: return integer_type(type);
    case H5T_FLOAT: return float_type(type);
    case H5T_ENUM: return enum_type(type);
    case H5T_COMPOUND: return compound_type(type);
    default: return {std::nullopt, std::string(class_words(kind))};
  }
}

bool carries(hid_t type, DType dtype) {
  TypeFound const found = dtype_of_type(type);
  return found.dtype && bits(*found.dtype) == std::max(bits(dtype), 8);
}

std::vector<hsize_t> stored_extents(DType dtype, std::vector<Index> const& shape) {
  std::vector<hsize_t> extents(shape.begin(), shape.end());
  auto const [elements, bytes] = packing(dtype);
  if (elements > 1) extents.back() = extents.back() / elements * bytes;
  return extents;
}

std::optional<std::vector<Index>> shape_from_extents(DType dtype,
                                                     std::vector<hsize_t> const& extents) {
  constexpr auto largest = static_cast<hsize_t>(std::numeric_limits<Index>::max());
  auto const [elements, bytes] = packing(dtype);
  if (elements > 1 && extents.empty()) return std::nullopt;
  std::vector<Index> shape;
  for (std::size_t d = 0; d < extents.size(); ++d) {
    hsize_t extent = extents[d];
    if (elements > 1 && d + 1 == extents.size()) {
      if (extent % bytes != 0 || extent / bytes > largest / elements) return std::nullopt;
      extent = extent / bytes * elements;
    }
    if (extent > largest) return std::nullopt;
    shape.push_back(static_cast<Index>(extent));
  }
  return shape;
}

}  // namespace reshard::hdf5
