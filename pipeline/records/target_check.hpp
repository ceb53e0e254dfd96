#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/verify/scans/scan.hpp"

namespace reshard {

/// A tensor of the plan by its number, and the one that a cell is a part of, for messages.
std::string tensor_name(JobPlan const& plan, DigestId digest);
std::string cell_name(JobPlan const& plan, Cell const& cell);

/// Everything in the target that has a digest: every stored piece of every tensor, and the opaque
/// copies, which count as tensors behind the model's.
DigestWork target_digest_work(JobPlan const& plan);

/// Facts about the bytes to write and the bytes that are there.
struct TargetFacts {
  std::span<std::uint64_t const> digests;       ///< of the source, by tensor
  std::span<std::uint64_t const> file_digests;  ///< CRC-64 of each file
};
/// An Error of kind self_check that names the tensors and files that disagree; nothing when all is
/// well.
void expect_target(JobPlan const& plan, DigestWork const& work, ScanResult const& found,
                   TargetFacts const& expected);

/// The tensors of the plan with their digests, for a manifest. `catalog`: whose dtypes they have.
std::vector<TensorDigest> tensor_list(Model const& model, Catalog const& catalog, bool with_axes,
                                      std::span<std::uint64_t const> digests,
                                      std::span<int const> adds);

}  // namespace reshard
