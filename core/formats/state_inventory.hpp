#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// In which form a checkpoint holds state of its training run.
enum class StateForm {
  none,
  by_weight,   ///< tensors of the shapes of the weights, cut like them: they can follow any layout
  in_buffers,  ///< flat buffers whose order the layout in `args` gives: they can follow any layout
  by_layout,   ///< in another form, which perhaps only the layout of the save can use
  in_rank_files,  ///< files of single ranks beside the weights
  in_model_files  ///< beside the weights in Megatron's own rank files
};

/// State of one kind.
struct HeldState {
  StateForm form = StateForm::none;
  std::string example;  ///< a key or file that holds some, for messages; may be ""
  std::string fault{};  ///< a sentence without its dot: why it cannot be used, and what to do

  explicit operator bool() const { return form != StateForm::none; }
};

/// All that a checkpoint holds besides weights.
struct StateInventory {
  HeldState optimizer;
  HeldState rng;                    ///< random generators and fault detection of single ranks
  std::vector<std::string> slots;   ///< of optimizer state by weight: "param", "exp_avg", …
  std::vector<std::string> others;  ///< what belongs to one run or layout, and no target takes over
};

/// Whether a key that no map explains is likely to hold optimizer state.
inline bool is_optimizer_key(std::string_view key) {
  return key.starts_with("optim") || key.find(".optim") != std::string_view::npos ||
         key.find("exp_avg") != std::string_view::npos;
}

/// Keys of one rank's random generators or fault detection.
inline bool is_run_state(std::string_view key) {
  return key.starts_with("rng_state") || key.starts_with("rerun_state_machine_state");
}

}  // namespace reshard
