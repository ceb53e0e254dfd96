#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/base/file.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/header_exchange.hpp"

namespace reshard {

/// Whether the headers of several files may be read at a time: not where a library reads them that
/// one thread may use.
enum class HeaderReads { overlapped, in_turn };

/// Reads the header of every file of the source, each rank those that are its turn, and gives all
/// of them to all ranks. Each file is stamped first, from the same descriptor: source.stamps. Pre:
/// source.files is the same on every rank. Collective.
std::vector<std::string> shared_headers(Checkpoint& source, HeaderExchange const& exchange,
                                        std::function<std::string(File const&)> const& read,
                                        HeaderReads reads = HeaderReads::overlapped);

/// The header of every safetensors file, read that way.
std::vector<safetensors::Header> shared_safetensors_headers(Checkpoint& source,
                                                            HeaderExchange const& exchange);

}  // namespace reshard
