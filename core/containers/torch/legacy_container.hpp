#pragma once

#include <cstddef>
#include <span>

#include "core/containers/torch/torch_file.hpp"

namespace reshard::legacy {

/// The size of the first pickle if a file that starts with these bytes is one of torch before 1.6
/// (or written with _use_new_zipfile_serialization=False); else 0.
std::size_t magic_bytes(std::span<std::byte const> beginning);

/// Reads the pickles after the first and finds the storages after those by addition; payloads are
/// not read.
TorchFile read(FileRange const& file, std::size_t magic_bytes);

}  // namespace reshard::legacy
