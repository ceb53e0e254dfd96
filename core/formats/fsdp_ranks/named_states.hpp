#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/formats/fsdp_ranks/rank_table.hpp"

namespace reshard::fsdp_ranks {

/// The weights of the parameters of an optimizer.
struct StateNames {
  std::map<std::string, std::string> name_of;  ///< by the key of its state, "3"
  std::string fault;  ///< the reason for which they are unknown, and the next step: a sentence
                      ///< without its dot
};

/// torch.optim counts parameters from 0, through its groups. If it was given no names, one group of
/// all parameters has them in the order of the model's state dict, without second names of tied
/// weights and without buffers (plain tensors next to DTensors, unless the states show that they
/// are parameters): model.parameters() and state_dict() visit modules in the same order. The shapes
/// of all states are compared with those of their weights. `states` and `weights` are those of
/// tensors_of().
StateNames names_of_states(RankFiles const& optimizer, std::span<RankTensor const> states,
                           RankFiles const& model, std::span<RankTensor const> weights);

/// "3.exp_avg": the key and the slot.
std::pair<std::string, std::string> parts_of_state(std::string const& name);

}  // namespace reshard::fsdp_ranks
