#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/io/file_set.hpp"
#include "pipeline/journal/earlier_work.hpp"
#include "pipeline/publication/claim/claim_target.hpp"
#include "pipeline/publication/target_sums.hpp"
#include "stages/write/target_files.hpp"

namespace reshard {

/// A target whose files are there at full size.
struct BegunTarget {
  std::vector<TargetLayout> layouts;  ///< with paths in the staging folder
  TargetSums sums;
  /// Those that this rank has made are open in it as far as there is room; empty where libhdf5
  /// writes.
  std::unique_ptr<FileSet> files;
  std::vector<int> owners;             ///< by file: the rank that makes it and completes it
  std::optional<EarlierWork> earlier;  ///< what earlier runs did; nothing when this is the first
  bool integrity = false;              ///< integrity.json is written
};

/// Makes every file of a claimed target, or goes on with those of an earlier run. Collective. Pre:
/// no earlier run has made the whole target; task.plan is whole. `engine` (io_engines) writes.
BegunTarget begin_target(TargetTask const& task, ClaimedTarget const& claimed,
                         std::string_view engine);

/// The files of a target in its staging folder.
std::vector<TargetLayout> layouts_in(std::filesystem::path const& staging, JobPlan const& plan);
/// The sums of a target of which nothing is written. Pre: task.plan is whole.
TargetSums sums_of(TargetTask const& task, std::span<TargetLayout const> layouts);

/// The files that a rank makes and completes, ascending.
std::vector<std::uint32_t> files_of(BegunTarget const& begun, int rank);

/// Notes in its journal which job a target is of. On rank 0.
void note_job(TargetTask const& task, ClaimedTarget const& claimed);

}  // namespace reshard
