#pragma once

#include <cstdint>
#include <span>

#include "core/plan/plan.hpp"

namespace reshard {

/// The part of a tensor's elements that a target has.
enum class TargetCover { whole, part };

/// The validity of the plan of a tensor with one piece on each side.
enum class PlanScope {
  these_places,
  any_places  ///< of every tensor that is like it (AlikeTensors), too, at its places
};

/// Plans one logical tensor that exists: its cells, regions and digests go into `plan`, which is
/// empty; its bytes into `tensor_bytes`, which are those of the complete plan. Internal to this
/// library. Errors: as make_plan().
PlanScope plan_tensor(Plan& plan, std::span<std::uint64_t> tensor_bytes, Model const& model,
                      TensorId tensor, Catalog const& source, Catalog const& target,
                      PlanLimits const& limits, TargetCover cover = TargetCover::whole);

}  // namespace reshard
