#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/files/file_range.hpp"

namespace reshard::zip {

/// The CRC-32 that an archive has recorded of the payload at `offset_bytes` of the archive: read
/// from the descriptor after the payload, else from the directory. nullopt if none was recorded:
/// torch writes zeros if it is set not to compute any.
std::optional<std::uint32_t> stored_crc32(FileRange const& archive, std::uint64_t offset_bytes,
                                          std::uint64_t size_bytes);

/// The name of the record with this payload; "" where there is none.
std::string record_name(FileRange const& archive, std::uint64_t offset_bytes);

}  // namespace reshard::zip
