#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/containers/torch/pickle.hpp"

namespace reshard {

/// What a program that is not Megatron says of its optimizer, which is one of torch.optim's.
struct TorchOptimizer {
  std::string settings;  ///< pickled list of param_groups; "" for none
  /// The parameters of each of `settings`, by the stored names of their weights.
  std::vector<std::vector<std::string>> members;
  std::optional<double> steps;  ///< that it has done, the same for all parameters
  std::string fault;            ///< a sentence: why nothing can be made of it; "" for nothing
};

/// The list of param_groups. Pre: `settings` is not empty.
pickle::Document settings_of(TorchOptimizer const& optimizer);

/// 0 where it is not known.
std::int64_t whole_steps(TorchOptimizer const& optimizer);

/// An Error of kind source where settings hold more than plain data.
void check_plain(pickle::Document const& settings, std::string const& place);

/// "optimizer.param_groups.NAME.FIELD" with the field's value, for every parameter: what PyTorch's
/// distributed checkpoints hold of an optimizer, each value as torch.save writes it. Values that
/// are no plain data are an Error of kind source.
std::vector<std::pair<std::string, std::string>> settings_by_parameter(
    TorchOptimizer const& optimizer, std::string const& place);

/// {"optimizer": …} as Megatron has it in the common state of a torch_dist checkpoint: the two
/// groups that every Megatron run has, with and without weight decay, at the step of the source.
/// Errors of kind source: groups that differ in more than their weight decay, settings that
/// Megatron's Adam does not have, TorchOptimizer::fault.
pickle::Document megatron_settings(TorchOptimizer const& optimizer, std::string const& place);

}  // namespace reshard
