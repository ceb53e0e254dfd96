#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/deepspeed/universal.hpp"
#include "core/formats/megatron/state/rank_settings.hpp"
#include "core/formats/run/torch_optimizer.hpp"

namespace reshard::deepspeed {

// The run of a universal checkpoint that is made of another program's. Source: DeepSpeed 0.19.8,
// runtime/engine.py (_load_checkpoint), runtime/base_optimizer.py
// (load_hp_checkpoint_state_from_checkpoint_dir), runtime/zero/stage3.py
// (load_hp_checkpoint_state_from_checkpoint_dir_stage3).

/// The first whose stage 1 loads universal checkpoints: stated where no DeepSpeed wrote the source.
inline constexpr std::string_view oldest_version = "0.3.17";

/// Of weights alone: groups without settings, steps 0.
void set_fresh(UniversalRun& run, std::vector<UniversalTensor> const& tensors);

/// Sets steps and groups. DeepSpeed gives the groups of the run the settings of groups with equal
/// numbers, loads no parameters of further ones, and gives all groups of stage 3 those of the
/// first. Which groups the run will have is not known, so there is a group for each parameter, and
/// all have what those of the source have in common of lr, betas, eps and weight_decay. A warning
/// names what differs. Errors of kind source: no settings, no steps.
void set_common_settings(UniversalRun& run, TorchOptimizer const& optimizer,
                         std::vector<UniversalTensor> const& tensors, std::string const& place,
                         std::vector<std::string>& warnings);
void set_common_settings(UniversalRun& run, megatron::OptimizerSettings const& settings,
                         std::vector<UniversalTensor> const& tensors, std::string const& place,
                         std::vector<std::string>& warnings);
[[noreturn]] void refuse_without_settings(std::string const& place);

/// Sets model states of one rank at the run's iteration, and a position of the learning-rate
/// schedule for DeepSpeed's schedulers and torch's.
void set_made_states(UniversalRun& run, std::vector<UniversalTensor> const& tensors,
                     std::int64_t samples);

}  // namespace reshard::deepspeed
