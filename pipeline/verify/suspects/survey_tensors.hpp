#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/transport/comm.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/verify/surveys/value_survey.hpp"

namespace reshard {

/// The reading of a checkpoint's tensors, each in a layout of its own: file t of `target` would
/// hold the row-major bytes of tensor t of `tensors`.
struct SurveyWork {
  Checkpoint const& checkpoint;
  JobPlan const& catalogue;
  Catalog const& target;
  std::vector<SurveyedTensor> const& tensors;
  bool parts = false;  ///< the target may have a part of each tensor (make_part_plan)
};

/// Reads each of these bytes once and looks at their values. The slices of all ranks, by number.
/// Collective. Errors: source, io.
std::vector<SliceValues> survey_tensors(SurveyWork const& work, std::uint64_t memory_bytes,
                                        std::size_t threads, Comm const& comm);

}  // namespace reshard
