#pragma once

#include <cstdint>
#include <filesystem>

namespace reshard {

/// Bytes that may be written at a path, or above it where it does not exist yet; 0 when that cannot
/// be found out.
std::uint64_t free_bytes_at(std::filesystem::path path);

/// Resident memory at its highest, of this program alone (getrusage would count what the launcher
/// held before it).
std::uint64_t peak_resident_bytes();

}  // namespace reshard
