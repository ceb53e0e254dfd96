#pragma once

#include <span>

#include "core/formats/manifest/manifest.hpp"
#include "pipeline/target/target_task.hpp"

namespace reshard {

/// The ranks share the folders of a complete target in `staging`: each is listed, and its names
/// reach the device. What another program put there while it was made, and would be published with
/// it, is an Error of kind self_check. `small_files` are rank 0's. Collective.
void close_target_folders(TargetTask const& task, std::filesystem::path const& staging,
                          std::span<FileRecord const> small_files);

}  // namespace reshard
