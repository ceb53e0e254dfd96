#pragma once

#include <numeric>
#include <string>

#include "pipeline/job/job_spec.hpp"
#include "stages/plan/job_plan.hpp"
#include "tests/support/made_checkpoint.hpp"

namespace reshard::test {

/// A DCP checkpoint with a few tensors that goes into another one, planned from headers alone: no
/// file is there.
struct SmallJob {
  MadeCheckpoint source;
  JobPlan plan;
};

inline SmallJob small_job(PlanLimits const& limits) {
  SmallJob job{made_dcp({{"model.a", {64, 96}}, {"model.b", {7}}, {"model.c", {40, 30}}}), {}};
  PlanRequest request;
  request.target.format = FormatId::dcp;
  request.read.map = "none";
  request.target.tool_version = "1.0";
  job.plan = make_job_plan(job.source.value, request, limits);
  return job;
}

/// Cells of about 2 KiB, rounds of at most 32 KiB.
inline PlanLimits small_limits(bool digests) { return {2048, 32768, digests}; }

/// The job file's side of it.
inline JobSpec small_spec(std::filesystem::path const& folder) {
  JobSpec spec;
  spec.source.path = (folder / "source").string();
  spec.target.path = (folder / "target").string();
  spec.target.format = FormatId::dcp;
  return spec;
}

}  // namespace reshard::test
