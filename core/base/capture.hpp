#pragma once

#include <functional>
#include <optional>
#include <system_error>

#include "core/base/error.hpp"

namespace reshard {

/// What std::thread throws where the system has no room for another one (EAGAIN), as an Error of
/// kind resources.
Error thread_refused(std::error_code const& code);

/// What `work` threw, as an Error; nothing when it returned. Foreign exceptions become internal
/// ones, but std::filesystem's are of kind io or resources, and memory or a thread that the system
/// refuses is of kind resources.
std::optional<Error> capture(std::function<void()> const& work);

}  // namespace reshard
