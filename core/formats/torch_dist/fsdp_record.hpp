#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/containers/dcp/directory.hpp"
#include "core/formats/checkpoint.hpp"

namespace reshard::dcp {

// Megatron-FSDP has no common state: every value of its run is an object, under a key with the path
// in nested dicts ("opt_param_scheduler.max_lr"). Source: Megatron-Core 0.16.1,
// optimizer/distrib_optimizer.py and transformer/fsdp_dtensor_checkpoint.py.

/// "optimizer.param_to_group_meta.module.module.module.decoder.….lr": a setting of the parameter
/// group that a parameter is in.
struct GroupSettingKey {
  std::string_view parameter;  ///< "decoder.…", gate and up together
  std::string_view field;      ///< "lr"
};
/// nullopt if the key has another form.
std::optional<GroupSettingKey> parse_group_setting(std::string_view key);
std::string group_setting_key(std::string_view parameter, std::string_view field);

/// "optimizer.state.module.module.module.decoder.….step": the steps of torch's own AdamW, which
/// counts them for each parameter, in scalars.
bool is_step_key(std::string_view key);

/// The common state of torch_dist made from the objects: args, iteration, scheduler, and under
/// "optimizer" the parameter groups of all parameters, those of experts as a second optimizer if
/// they are marked as such, or the groups of a plain optimizer that counts them
/// (numbered_states.hpp). nullptr without args. Reads the objects. Errors of kind source: damage;
/// steps that differ.
std::shared_ptr<CommonState> read_fsdp_common(Checkpoint const& checkpoint);

}  // namespace reshard::dcp
