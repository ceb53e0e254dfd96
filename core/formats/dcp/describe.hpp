#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/formats/format.hpp"

namespace reshard::dcp {

/// What Megatron needs to load a torch_dist folder and does not find there, a sentence each; none
/// for other formats. Looks at names alone.
std::vector<std::string> absent_parts(Checkpoint const& checkpoint);

/// What `inspect` says of a checkpoint in boxes, whose item heads need not have been read. Boxes
/// that overlap or leave holes are mismatches. `by_backend`: metadata.json names the torch_dist
/// backend. `args`: Megatron's, where there are any; null.
Inspection inspection(std::filesystem::path const& path, Checkpoint const& checkpoint,
                      bool by_backend, Json const& args);

}  // namespace reshard::dcp
