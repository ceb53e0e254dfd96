#pragma once

namespace reshard {

/// Memory of 256 KiB and more comes from the system and goes back to it at once. Else the C library
/// keeps what a large job's headers and plan have let go of. To be called once, at the start.
void return_large_memory_at_once();

/// Gives back what was freed. Worth a call between two phases that both need much.
void return_free_memory();

}  // namespace reshard
