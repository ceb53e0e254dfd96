#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/publication/complete_target.hpp"
#include "stages/verify/scans/scan.hpp"

namespace reshard {

/// Compares a target with what was to be written without reading what it has in common with the
/// previous one (ReusedBytes::files and blocks). By the linearity of digests: what the rest adds to
/// a tensor's digest, xor what the same places of the previous target add, is the digest of the
/// tensor xor the recorded one of the previous target. So the rest of both is read; of a tensor
/// that has nothing in common, only that of the target, whose digest is then the tensor's.
///
/// Nothing when that proves nothing or saves nothing (less than half is in common, a file is new, a
/// tensor is not recorded), or when something disagrees, for whatever reason: then everything is to
/// be read. Collective.
std::optional<ScanResult> read_back_without_reused(TargetTask const& task, BegunTarget const& begun,
                                                   CompletedTarget const& completed,
                                                   ScanOptions options);

/// Sums of the blocks of each file for the manifest, without paths; none where nothing is recorded.
/// `now`: when the files that were read were.
std::vector<FileBlockSums> block_sums(TargetTask const& task, BegunTarget const& begun,
                                      ScanResult const& found, std::string_view now);
/// The first of the times at which those files were read back that were not read now; "" where all
/// were. `blocks` are those of `block_sums`.
std::string oldest_of(TargetTask const& task, ScanResult const& found,
                      std::vector<FileBlockSums> const& blocks);
/// Gives files that were not read the hash that the previous target recorded of them.
void take_recorded_hashes(TargetTask const& task, ScanResult& found);

/// 2026-11-26T02:00:00Z
std::string utc_second_now();

}  // namespace reshard
