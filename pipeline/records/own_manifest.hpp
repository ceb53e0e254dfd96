#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/manifest/manifest.hpp"

namespace reshard {

/// As manifest_of(), for those who only read a checkpoint: a manifest that is damaged, or speaks of
/// other files, is passed over, and `notes` gets the reason. Looks through Sight.
std::optional<Manifest> own_manifest(std::filesystem::path const& path, Checkpoint const& source,
                                     std::vector<std::string>& notes);

/// Rows that are vocabulary, as a manifest says; 0 where it does not.
Index vocab_in(Manifest const& manifest);

/// Why the tensors that were found have another total than those of the manifest, and what to do,
/// as a note; "" when the total is the same, or when the manifest has none. `place`: what the note
/// calls the manifest.
std::string why_other_total(Manifest const& manifest, std::span<TensorDigest const> found,
                            std::string const& place);

}  // namespace reshard
