#pragma once

#include <cstdint>
#include <string_view>

namespace reshard::pickle {

/// How a class or function may be in a pickle that we write. Whoever loads the pickle imports
/// what it names and calls what it calls.
enum class Permission : std::uint8_t {
  none,         ///< not at all
  foreign,      ///< it is of another package, so we do not know it
  value,        ///< named, but not called: int as the default of a defaultdict
  enumeration,  ///< called with the value of a member
  call,
};

/// By exact names; "module.name" of a pickle is two texts, and a dot in the name reaches into what
/// the module has imported.
Permission permission_of(std::string_view module, std::string_view name);

}  // namespace reshard::pickle
