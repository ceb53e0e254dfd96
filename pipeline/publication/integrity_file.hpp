#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "core/formats/manifest/sha256_sums.hpp"
#include "pipeline/publication/target_task.hpp"

namespace reshard {

/// Whether the target gets an integrity.json: when the job says so, or the source has one.
/// Collective.
bool wants_integrity(TargetTask const& task);

/// Writes the integrity.json of a folder of the staging folder: every file that lies in it. Those
/// of `known` are all files below the staging folder. Gives its record. On one rank.
FileRecord write_integrity(std::filesystem::path const& folder,
                           std::filesystem::path const& staging, std::span<FileSum const> known);

/// The same where nothing is known: the ranks hash the files in turn. Gives its record, on rank 0.
/// Collective.
std::vector<FileRecord> write_integrity(std::filesystem::path const& folder,
                                        std::filesystem::path const& staging, Comm const& comm);

}  // namespace reshard
