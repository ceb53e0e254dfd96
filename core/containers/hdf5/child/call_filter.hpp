#pragma once

namespace reshard::hdf5 {

// The system calls that the child of child.cpp may make. A forbidden call ends the process with
// SIGSYS. Both functions return whether the filter is in force: builds without libseccomp and
// kernels without seccomp have none.

/// Whether this build and this kernel can filter system calls.
bool can_filter_calls();

/// Allows only memory, reading, opening for reading, and writing to `answers` and to the standard
/// outputs: no other process, no network, no program, no change of a file or a name.
bool allow_only_reading(int answers);

/// Forbids all calls that take a path. Pre: allow_only_reading() was called.
bool forbid_paths();

}  // namespace reshard::hdf5
