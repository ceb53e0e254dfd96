#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/plan/cells/round.hpp"
#include "core/plan/compile.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/write/journal.hpp"

namespace reshard {

/// The layout of each file of a plan's target, as a number: two files with the same one have the
/// same bytes of the same logical tensors at the same places (XXH3 of the regions of
/// target_digest_work by place, with names, dtypes and shapes). By number of the file.
std::vector<std::uint64_t> file_layouts(JobPlan const& plan);

/// Tensors whose bytes a previous target has where this one will have them, so that the source need
/// not be read.
struct TakenTensors {
  std::vector<bool> tensors;           ///< by DigestId; empty: none
  std::vector<std::uint64_t> digests;  ///< of these
  std::vector<FileSpan> places;        ///< all their bytes in target files, by place, apart
  bool empty() const { return places.empty(); }
};

/// Which of the tensors with a digest in `same` are taken: those whose every byte in the target is
/// in files of `usable`, alone in their stored tensors, without padding that no digest covers,
/// where no CRC-32 is wanted of them and no check of optimizer state reads them. Pre: the plan is
/// whole.
TakenTensors choose_taken(JobPlan const& plan, std::span<std::optional<std::uint64_t> const> same,
                          std::vector<bool> const& usable);

/// The work that a run does by taking tensors before its first round: the cells, and their part of
/// the sums of the job, except those of files. Pre: the plan is whole.
JournalEntry work_of_taken(JobPlan const& plan, TakenTensors const& taken);

/// Parts of a file: complete blocks (the last one of a file may be shorter), and what is left.
struct BlockParts {
  std::vector<FileSpan> blocks;  ///< of one or more blocks each
  std::vector<FileSpan> rest;
};
BlockParts in_blocks(std::span<FileSpan const> places, std::uint64_t block_bytes,
                     std::uint64_t size_bytes);

}  // namespace reshard
