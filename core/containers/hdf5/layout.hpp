#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace reshard::hdf5 {

// The names of docs/formats/hdf5.md, 2.

inline constexpr char const* tensors_group = "tensors";
inline constexpr char const* objects_group = "objects";

inline constexpr char const* dtype_attribute = "dtype";
inline constexpr char const* crc64_attribute = "crc64";
inline constexpr char const* domain_attribute = "domain";

inline constexpr char const* format_attribute = "format";
inline constexpr char const* version_attribute = "format_version";
inline constexpr char const* software_attribute = "software";
inline constexpr char const* complete_attribute = "complete";
/// Root attributes that every container has.
inline constexpr std::array<std::string_view, 4> own_attributes = {
    format_attribute, version_attribute, software_attribute, complete_attribute};

inline constexpr std::string_view format_value = "reshard-hdf5";
inline constexpr std::string_view version_value = "1";
inline constexpr std::string_view software_value = "reshard";

/// The length of `crc64`: hexadecimal digits, all zero until a container is finished.
inline constexpr std::size_t digest_digits = 16;

}  // namespace reshard::hdf5
