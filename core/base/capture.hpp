#pragma once

#include <functional>
#include <optional>
#include <system_error>

#include "core/base/error.hpp"

namespace reshard {

/// The exception of std::thread when the system has no room for another thread (EAGAIN), as an
/// Error of kind resources.
Error thread_refused(std::error_code const& code);

/// Calls `work` and returns its exception as an Error; nullopt if it returned. Foreign exceptions
/// become internal ones, but those of std::filesystem are of kind io or resources, and refused
/// memory or threads are of kind resources.
std::optional<Error> capture(std::function<void()> const& work);

}  // namespace reshard
