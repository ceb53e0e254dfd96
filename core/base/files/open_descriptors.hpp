#pragma once

#include <span>

namespace reshard {

/// What happens to descriptors that a child shall not have.
enum class Leave { now, on_exec };

/// Closes the open descriptors of this process above standard error except `kept`, or lets exec
/// close them. Makes system calls only, so that a child of a process with threads may call it
/// before exec. close_range(2) does the same, but since Linux 5.9 and glibc 2.34 only. Without
/// /proc, descriptors above 1023 stay as they are.
void leave_descriptors(Leave leave, std::span<int const> kept = {}) noexcept;

}  // namespace reshard
