#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// The form of the training state in a checkpoint.
enum class StateForm {
  none,
  by_weight,   ///< tensors of the shapes of the weights, cut like them: they can follow any layout
  in_buffers,  ///< flat buffers whose order the layout in `args` gives: they can follow any layout
  by_layout,   ///< in another form, which perhaps only the layout of the save can use
  in_rank_files,  ///< files of single ranks next to the weights
  in_model_files  ///< with the weights in Megatron's own rank files
};

/// State of one kind.
struct HeldState {
  StateForm form = StateForm::none;
  std::string example;  ///< a key or file with such state, for messages; may be ""
  std::string fault{};  ///< the reason for which it cannot be used, and the next step: a sentence
                        ///< without its dot

  explicit operator bool() const { return form != StateForm::none; }
};

/// The content of a checkpoint other than weights.
struct StateInventory {
  HeldState optimizer;
  HeldState rng;                    ///< random generators and fault detection of single ranks
  std::vector<std::string> slots;   ///< of optimizer state by weight: "param", "exp_avg", …
  std::vector<std::string> others;  ///< state of one run or layout, which no target takes over
};

/// Whether a key that is in no map is likely to be optimizer state.
inline bool is_optimizer_key(std::string_view key) {
  return key.starts_with("optim") || key.find(".optim") != std::string_view::npos ||
         key.find("exp_avg") != std::string_view::npos;
}

/// Whether a key is of one rank's random generators or fault detection.
inline bool is_run_state(std::string_view key) {
  return key.starts_with("rng_state") || key.starts_with("rerun_state_machine_state");
}

}  // namespace reshard
