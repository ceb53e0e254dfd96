#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/containers/torch/pickle/pickle.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/run/run_record.hpp"

namespace reshard {

/// {"optimizer": …} of a source in rank files, as in the common state of torch_dist: the parameter
/// groups of all ranks, and the loss scale. Its tensors are the record's. Steps that differ are an
/// Error of kind source. Pre: source.rank_states.
pickle::Document rank_settings(Checkpoint const& source, RunRecord const& record);

/// rank_settings() of any source with optimizer state: made from Checkpoint::torch_optimizer, or
/// that of the record for other sources without rank files. Pre: the record is that of the source.
pickle::Document common_settings(Checkpoint const& source, RunRecord const& record);

/// Errors of kind source: common state without parameter groups, or with groups at different steps.
/// `place` names its file.
void check_settings(pickle::Document const& common, std::string const& place);

namespace megatron {

/// The initial settings of the optimizers of a target in rank files.
struct OptimizerSettings {
  /// The steps of torch's own AdamW, which counts them for each parameter. nullopt for Apex and
  /// Transformer Engine, whose parameter groups count.
  std::optional<double> torch_step;
  pickle::Document document;
  /// Nodes of `document`, one for each optimizer: {"optimizer": {"param_groups": […]},
  /// "grad_scaler": …}; for F32 weights without the distributed optimizer {"param_groups": […]}.
  std::vector<pickle::NodeId> optimizers;
  /// Bytes of the document's tensors, by the key of their storage.
  std::map<std::string, std::string> payloads;
};

/// The settings of a source with optimizer state for a layout. `experts_apart`: experts have an
/// optimizer of their own there. Errors of kind source: no settings, values that cannot be
/// converted.
OptimizerSettings optimizer_settings(Checkpoint const& source, RunRecord const& record,
                                     bool experts_apart, bool expert_biases);

}  // namespace megatron
}  // namespace reshard
