#pragma once

namespace reshard::hdf5 {

// What the child of child.cpp may ask of the system. A call that is not allowed ends the process at
// once, with SIGSYS. Both functions say whether the filter is in force: builds without libseccomp
// and kernels without seccomp have none.

/// Whether this build and this kernel can filter system calls.
bool can_filter_calls();

/// From here on: memory, reading, opening for reading, and writing to `answers` and to the standard
/// outputs. No other process, no network, no program, and nothing that changes a file or a name.
bool allow_only_reading(int answers);

/// From here on what is open is all there is: no path means anything any more. Pre:
/// allow_only_reading() was called.
bool forbid_paths();

}  // namespace reshard::hdf5
