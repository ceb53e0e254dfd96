#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "core/formats/deepspeed/folder.hpp"
#include "core/formats/deepspeed/held_parts.hpp"

namespace reshard::deepspeed {

/// The stored name of optimizer state: "optimizer.state.NAME.exp_avg", as PyTorch's distributed
/// checkpoints have it.
std::string state_name(std::string_view parameter, std::string_view slot);

/// The parameter and the slot of such a name; nullopt for another name.
struct StateName {
  std::string_view parameter;
  std::string_view slot;
};
std::optional<StateName> parse_state_name(std::string_view name);

/// Fills the tables of `checkpoint` and its run state. Checkpoint::files are the model files, then
/// those of `Headers::optimizers`, in these orders. Errors of kind source: incomplete parameters, a
/// number of files that differs from the stated ranks.
void fill_checkpoint(Folder const& folder, Headers const& headers, Checkpoint& checkpoint);

}  // namespace reshard::deepspeed
