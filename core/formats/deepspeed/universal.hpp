#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/shared_shape.hpp"
#include "core/base/text/shared_text.hpp"
#include "core/containers/torch/pickle/pickle.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard::deepspeed {

/// The slot of the steps, which a source may have as a tensor for each parameter.
inline constexpr std::string_view step_slot = "step";
/// The key of optimizer_state.pt of a checkpoint that was made of weights alone, with the state of
/// an optimizer that has done nothing: its readers take the weights.
inline constexpr std::string_view weights_alone_key = "reshard_weights_alone";
/// The key of optimizer_state.pt with the files ("PARAMETER/SLOT") that the source has nothing of:
/// zeros, and steps of parameters with no moments. Readers of the program take none of them.
inline constexpr std::string_view stand_ins_key = "reshard_stand_ins";

/// A tensor of a universal checkpoint.
struct UniversalTensor {
  SharedText parameter;
  std::string slot;  ///< "fp32", "exp_avg", "step"; "": the weight itself
  SharedText key;    ///< for listings
  DType dtype = DType::f32;
  SharedShape shape;
};

/// The content of a universal checkpoint besides its tensors.
struct UniversalRun {
  std::int64_t iteration = 0;   ///< in the name of the folder
  std::string version;          ///< of DeepSpeed
  pickle::Document groups;      ///< the list of param_groups
  std::optional<double> steps;  ///< the optimizer has done
  bool tensor_steps = true;     ///< as torch.optim has them; else a number
  bool weights_alone = false;   ///< moments and steps are zeros
  /// Adds all but `module` to the dict of model states.
  std::function<void(pickle::Document&)> add_states;
  std::vector<std::string> second_names;  ///< of weights that are shared
};

/// Adds a universal checkpoint, as deepspeed/checkpoint/ds_to_universal.py writes it: for each
/// parameter a folder with one file for each slot, which contains the complete tensor. Moments of
/// weights alone are tensors of one stored zero. `pieces(i)` are those of tensors[i]. Pre: `groups`
/// and `steps` are set where there are moments.
void lay_out_universal(TargetDraft& draft, std::vector<UniversalTensor> const& tensors,
                       UniversalRun const& run,
                       std::function<std::vector<Piece>(std::size_t)> const& pieces);

}  // namespace reshard::deepspeed
