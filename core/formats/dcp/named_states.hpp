#pragma once

#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/containers/stored_table.hpp"

namespace reshard::dcp {

// Optimizer state under the names of its parameters, as get_state_dict() of torch gives it and
// trainers save it: "optimizer.state.NAME.exp_avg", "optimizer.state.NAME.step", and settings
// under "optimizer.param_groups". The first word is the trainer's. Source: torch 2.13,
// torch/distributed/checkpoint/state_dict.py.

/// One tensor of it. Texts are parts of stored names, or in NamedStates::made.
struct NamedState {
  std::string_view weight;  ///< the stored name of its weight, or that of a fused parameter whose
                            ///< weight is stored as its parts (torchtitan's wqkv)
  std::string_view slot;    ///< "exp_avg"
  std::size_t tensor = 0;   ///< in StoredTable::tensors
};

/// The named states of a table.
struct NamedStates {
  std::vector<NamedState> states;      ///< of the shapes of their weights
  std::vector<NamedState> steps;       ///< one value each
  std::vector<std::size_t> settings;   ///< tensors: a learning rate may be one
  std::set<std::string_view> places;   ///< the text before "state.": "optimizer."
  std::string trainer;                 ///< the prefix of parameters in the names of their weights:
                                       ///< "model."
  std::vector<std::size_t> elsewhere;  ///< state of weights without the prefix asked for
  std::vector<std::size_t> strays;     ///< state that matches no weight
  std::deque<std::string> made;        ///< names of fused parameters
  std::string fault;                   ///< the reason for strays, a sentence without its dot
};

/// The state of weights whose stored names begin with `prefix`: every parameter NAME has a weight
/// TRAINER NAME, or the parts of one, with the same TRAINER for all. Ambiguous names are strays.
NamedStates named_states(StoredTable const& table, std::string_view prefix);

/// "param_groups", perhaps followed by a dot and further words.
inline constexpr std::string_view settings_word = "param_groups";

/// Whether a stored name is one of settings in these places.
bool is_named_setting(std::string_view name, std::set<std::string_view> const& places);

}  // namespace reshard::dcp
