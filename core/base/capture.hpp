#pragma once

#include <functional>
#include <optional>

#include "core/base/error.hpp"

namespace reshard {

/// What `work` threw, as an Error; nothing when it returned. Foreign exceptions become internal
/// ones, but std::filesystem's are of kind io or resources.
std::optional<Error> capture(std::function<void()> const& work);

}  // namespace reshard
