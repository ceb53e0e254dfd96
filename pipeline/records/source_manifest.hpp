#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// The manifest that lies in a checkpoint, or beside the iteration folder that `path` names.
/// Without one, or when it does not list the files of `source` (which `warnings` then says), what
/// the files themselves record. A listed file of another size is an Error of kind source.
std::optional<Manifest> manifest_of(std::filesystem::path const& path, Checkpoint const& source,
                                    std::vector<std::string>& warnings);

/// The recorded digest of each tensor of the plan (by DigestId) whose stored values are read as
/// they are; nothing for others. All of them when `manifest` is fresh: each file of the source is
/// the one that was checked before the manifest was written, unchanged since; else none.
std::vector<std::optional<std::uint64_t>> fresh_digests(Manifest const& manifest,
                                                        Checkpoint const& source,
                                                        JobPlan const& plan);

/// Compares the digests of what was read with the manifest of the source, for the tensors whose
/// stored values were read as they are. An Error of kind source names the tensors, and the files
/// that are not what the manifest says. Returns how many were compared: not those that the plan
/// leaves unread, and not those that are `taken` from a previous target (by DigestId; empty: none).
std::size_t check_source_digests(Manifest const& manifest, Checkpoint const& source,
                                 JobPlan const& plan, std::span<std::uint64_t const> digests,
                                 std::vector<bool> const& taken = {});

}  // namespace reshard
