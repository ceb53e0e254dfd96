#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace reshard::hdf5 {

// The texts that a container may have, and the links of names; docs/formats/hdf5.md, 2. Needs no
// libhdf5.

/// The longest name of a tensor or an object.
inline constexpr std::size_t largest_name_bytes = 16'384;
/// The longest value of a root attribute.
inline constexpr std::size_t largest_value_bytes = std::size_t{16} << 20U;

/// Valid UTF-8 without NUL.
bool is_text(std::string_view bytes);
/// Valid UTF-8 without control characters (C0, DEL, C1): fit for names and labels.
bool is_line(std::string_view bytes);

/// The reason for which this cannot be the name of a tensor or an object ("it is empty", …);
/// nullopt if it can.
std::optional<std::string> name_problem(std::string_view name);

/// The link that stands for a name: '/' as %2F, '%' as %25.
std::string link_from_name(std::string_view name);
/// The inverse; nullopt if no name gives this link.
std::optional<std::string> name_from_link(std::string_view link);

/// Bytes of unknown origin, fit for a message: escaped unless is_line(), long ones are cut.
std::string shown(std::string_view bytes);

}  // namespace reshard::hdf5
