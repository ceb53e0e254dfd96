#pragma once

#include <cstddef>
#include <span>

#include "core/formats/torch_zip/torch_file.hpp"

namespace reshard::legacy {

/// Whether a file that starts with these bytes is one of torch before 1.6 (or written with _use_new_zipfile_serialization=False).
bool is_legacy(std::span<std::byte const> beginning);

/// Reads its five pickles and finds the storages behind them by addition; payloads are not read.
TorchFile read(File const& file);

}  // namespace reshard::legacy
