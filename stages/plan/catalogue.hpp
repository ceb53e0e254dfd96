#pragma once

#include "stages/plan/job_plan.hpp"

namespace reshard {

/// How a catalogue has the weights of a checkpoint whose weights are the master weights.
enum class Masters {
  as_stored,
  apart,  ///< as masters, and rounded as weights
  both,   ///< as masters and as weights, unrounded
};

/// The source's side alone: model, map and source catalogue, for listings. Optimizer and
/// random-generator state are no obstacle.
JobPlan catalogue(Checkpoint const& source, PlanRequest const& request,
                  Masters masters = Masters::as_stored);

/// The same; names and tensors as they are stored, with a warning, where the map does not describe
/// how weights are quantised.
JobPlan catalogue_as_stored(Checkpoint const& source, PlanRequest const& request);

}  // namespace reshard
