#pragma once

#include <string>
#include <vector>

#include "core/containers/dcp/metadata/metadata.hpp"
#include "core/formats/megatron/state/rank_settings.hpp"
#include "core/formats/targets/target_parts.hpp"

namespace reshard::dcp {

/// An object to be written, and its place in the nested state dict.
struct PlacedObject {
  std::string key;
  Path path;
  std::string bytes;
};

/// The parameter groups as Megatron-FSDP saves them: every setting of every parameter with state as
/// an object of its own (fsdp_record.hpp), under the name of the complete parameter and, if gate
/// and up have keys of their own, under those. With `experts_apart` experts are in the second of
/// the optimizers. `args`: of the run. Errors of kind source: parameters of no group, or of
/// several.
std::vector<PlacedObject> group_setting_objects(megatron::OptimizerSettings const& settings,
                                                TargetParts const& parts, Json const& args,
                                                bool experts_apart);

}  // namespace reshard::dcp
