#pragma once

#include <filesystem>

#include "core/formats/format.hpp"

namespace reshard::dcp {

/// What `inspect` says of a checkpoint in boxes, whose item heads need not have been read. Boxes
/// that overlap or leave holes are mismatches. `by_backend`: metadata.json names the torch_dist
/// backend.
Inspection inspection(std::filesystem::path const& path, Checkpoint const& checkpoint,
                      bool by_backend);

}  // namespace reshard::dcp
