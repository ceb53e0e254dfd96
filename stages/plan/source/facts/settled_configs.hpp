#pragma once

#include "stages/plan/source/source_model.hpp"

namespace reshard {

/// The configs and the args of a job describe one model, and those that the target gets must agree.
///   - source.config counts before the config inside a container, and that before the one beside
///   it.
///   - Args count before all of these: members of the config.json that the target gets take what
///   args say by now.
///   - target.reference goes into the target as it is. Sizes of axes that differ are refused.
/// Differences are warnings with key and both values. A config of the source's own that cannot be
/// brought into line stays as it is in a target that has args, with a warning; elsewhere, and where
/// source.config names it, it is refused (kind source).
void settle_configs(SourceModel& model, Checkpoint const& source, PlanRequest const& request);

}  // namespace reshard
