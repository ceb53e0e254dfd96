#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "core/formats/manifest/sha256_sums.hpp"

namespace reshard {

/// The entry for the manifest in the SHA256SUMS beside it, with all others.
struct SumsOfRecord {
  std::vector<FileSum> sums;  ///< where they are those of the manifest
  /// There is a SHA256SUMS, but it has another sum of the manifest, or none, or cannot be read: one
  /// of the two was edited, and nothing that only a record says is to be believed.
  bool contradicts = false;
};

SumsOfRecord record_sums(std::filesystem::path const& folder);
/// The same where the manifest's text was read before.
SumsOfRecord record_sums(std::filesystem::path const& folder, std::string_view manifest);

/// Whether the manifest of a checkpoint, in its folder or the one above it, is contradicted. Looks
/// through Sight.
bool is_record_contradicted(std::filesystem::path const& checkpoint);

}  // namespace reshard
