#pragma once

#include <cstdint>
#include <string_view>

namespace reshard::pickle {

/// The permitted use of a class or function in a pickle that we write. A loader of the pickle
/// imports its names and makes its calls.
enum class Permission : std::uint8_t {
  none,         ///< not permitted
  foreign,      ///< unknown: of another package
  value,        ///< named, but not called: int as the default of a defaultdict
  enumeration,  ///< called with the value of a member
  call,
};

/// By exact names; "module.name" of a pickle is two texts, and a dot in the name reaches the
/// imports of the module.
Permission permission_of(std::string_view module, std::string_view name);

}  // namespace reshard::pickle
