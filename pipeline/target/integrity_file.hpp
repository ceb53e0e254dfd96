#pragma once

#include <filesystem>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "pipeline/target/target_task.hpp"

namespace reshard {

/// Whether the target gets an integrity.json: when the job says so, or the source has one.
/// Collective.
bool wants_integrity(TargetTask const& task);

/// Writes the integrity.json of a folder of the staging folder: every file that lies in it, hashed
/// by the ranks in turn. Gives its record, on rank 0. Collective.
std::vector<FileRecord> write_integrity(std::filesystem::path const& folder,
                                        std::filesystem::path const& staging, Comm const& comm);

}  // namespace reshard
