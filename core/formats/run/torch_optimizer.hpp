#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard {

/// The optimizer of a program other than Megatron, one of torch.optim.
struct TorchOptimizer {
  std::string settings;  ///< pickled list of param_groups; "" for none
  /// The parameters of each of `settings`, by the stored names of their weights.
  std::vector<std::vector<std::string>> members;
  std::optional<double> steps;  ///< the steps done, the same for all parameters
  std::string fault;            ///< a sentence with the reason for which it cannot be used; "" if
                                ///< it can
};

/// The list of param_groups. Pre: `settings` is not empty.
pickle::Document settings_of(TorchOptimizer const& optimizer);

/// The integral number of steps; 0 if not known.
std::int64_t whole_steps(TorchOptimizer const& optimizer);

/// Throws an Error of kind source if settings contain more than plain data.
void check_plain(pickle::Document const& settings, std::string const& place);

/// "optimizer.param_groups.NAME.FIELD" with the field's value, for every parameter, as in PyTorch's
/// distributed checkpoints, each value as bytes of torch.save. Values that are not plain data are
/// an Error of kind source.
std::vector<std::pair<std::string, std::string>> settings_by_parameter(
    TorchOptimizer const& optimizer, std::string const& place);

/// {"optimizer": …} as in the common state of a torch_dist checkpoint: the two groups of every
/// Megatron run, with and without weight decay, at the step of the source. Errors of kind source:
/// groups that differ in more than their weight decay, settings that Megatron's Adam lacks,
/// TorchOptimizer::fault.
pickle::Document megatron_settings(TorchOptimizer const& optimizer, std::string const& place);

}  // namespace reshard
