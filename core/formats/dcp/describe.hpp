#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/formats/format.hpp"

namespace reshard::dcp {

/// A sentence for each part that Megatron needs to load a torch_dist folder and that is missing
/// there; none for other formats. By file names only.
std::vector<std::string> absent_parts(Checkpoint const& checkpoint);

/// The report of `inspect` about a checkpoint in boxes, whose item heads need not have been read.
/// Boxes that overlap or leave holes are mismatches. `by_backend`: metadata.json names the
/// torch_dist backend. `args`: Megatron's; null if there are none.
Inspection inspection(std::filesystem::path const& path, Checkpoint const& checkpoint,
                      bool by_backend, Json const& args);

}  // namespace reshard::dcp
