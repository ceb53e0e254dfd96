#pragma once

#include <filesystem>

#include "pipeline/describe/look.hpp"

namespace reshard {

/// inspect() of a DCP folder: `.metadata` alone is read. Boxes that overlap or leave holes are
/// mismatches.
Inspection inspect_dcp(std::filesystem::path const& path);
/// inspect() of boxes in safetensors files.
Inspection inspect_boxed_safetensors(std::filesystem::path const& path);

}  // namespace reshard
