#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace reshard {

/// Element types, with the spelling of safetensors (the one spelling used in messages, JSON and
/// maps). safetensors has no words for the last three. f4_x2 is torch's float4_e2m1fn_x2: two f4
/// values in each byte, and shapes count the bytes. F4 of safetensors is read as f4_x2 where its
/// last dimension is even, so that it is the same tensor in every format.
enum class DType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
  c128,
  c32,
  f4_x2,
};

/// Bits of one element: 4 for f4, 6 for the f6 kinds, else a multiple of 8.
int bits(DType dtype);

/// The last of the enumerators.
inline constexpr DType last_dtype = DType::f4_x2;

/// Whether a safetensors file can contain this dtype: f4_x2 as F4, with twice the last dimension.
constexpr bool in_safetensors(DType dtype) { return dtype < DType::c128 || dtype == DType::f4_x2; }

/// "BF16", "F8_E4M3", "BOOL", …
std::string_view name(DType dtype);

/// The inverse of name(); nullopt if the word is unknown.
std::optional<DType> dtype_from_name(std::string_view word);

}  // namespace reshard
