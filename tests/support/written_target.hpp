#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "stages/plan/job_plan.hpp"

namespace reshard::test {

/// Carries out a plan in one process, as slowly and plainly as it can be done: the files with
/// tensors, the small files and what travels beside them. `sources` are the bytes of the source's
/// files, in their order. Views are not computed: a plan that has any is an internal Error.
void write_target(JobPlan const& plan, std::vector<std::vector<std::byte>> const& sources,
                  std::filesystem::path const& folder);

/// The bytes of all files.
std::vector<std::vector<std::byte>> bytes_of_files(FilePaths const& files);

/// The stored tensor's bytes, row-major, gathered from its chunks; and whether they hold each
/// element exactly once. Pre: whole bytes for each element, or one chunk.
struct GatheredTensor {
  std::vector<std::byte> bytes;
  bool once = true;
};
GatheredTensor gathered(StoredTable const& stored, std::size_t tensor,
                        std::vector<std::vector<std::byte>> const& files);

}  // namespace reshard::test
