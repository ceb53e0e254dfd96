#pragma once

namespace reshard {

/// Memory of 256 KiB and more comes from the system and goes back to it at once. Else the C library
/// keeps the freed memory of a large job's headers and plan. To be called once, at the start.
void return_large_memory_at_once();

/// Returns freed memory to the system. Useful between two phases that both need much memory.
void return_free_memory();

}  // namespace reshard
