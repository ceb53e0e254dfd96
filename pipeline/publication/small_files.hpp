#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "core/formats/manifest/sha256_sums.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// Writes the files of a target that hold no tensors into its staging folder: those that travel
/// along, then texts; what makes the checkpoint count comes last. Gives their records, as they were
/// to be written.
std::vector<FileRecord> write_small_files(TargetDraft const& draft,
                                          std::filesystem::path const& staging);

/// Reads small files back, and gives their sums. An Error of kind self_check names one that is not
/// as it was to be written.
std::vector<FileSum> check_small_files(std::span<FileRecord const> written,
                                       std::filesystem::path const& staging);

}  // namespace reshard
