#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/text/wire.hpp"
#include "core/containers/file_tensor.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/megatron/state/rank_state.hpp"

namespace reshard::deepspeed {

// The headers of DeepSpeed's files, as far as a plan needs them; the only payloads read are steps.
// Pickles are data: classes of DeepSpeed in them (LossScaler, ZeroStageEnum, fragment_address) are
// described, never made. Source: DeepSpeed 0.19.8, runtime/engine.py (_save_checkpoint),
// runtime/zero/stage_1_and_2.py and stage3.py (state_dict), utils/tensor_fragment.py.

/// The word for master weights in universal checkpoints.
inline constexpr std::string_view master_word = "fp32";

struct NamedShape {
  std::string name;
  std::vector<Index> shape;
};

/// A file of model states.
struct ModelStates {
  std::vector<FileTensor> module;               ///< in its order; stage 3: parameters are empty
  std::vector<std::vector<NamedShape>> groups;  ///< param_shapes: the trained parameters, by group
  std::vector<NamedShape> frozen;               ///< complete shapes
  std::vector<FileTensor> frozen_parts;         ///< stage 3: the part of each on this rank
  std::vector<std::pair<std::string, std::string>> shared;  ///< second names, and the first ones
  Index data_parallel = 0;                                  ///< 0: not stated
  Index model_parallel = 1;
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  bool has_optimizer = false;       ///< of stage 0, inside this file
  std::string version;              ///< of DeepSpeed; "" before 0.3.17
  std::vector<std::string> others;  ///< keys with values that belong to the run
  std::vector<StorageRecord> records;
};

/// The place of a parameter in a rank's vectors (param_slice_mappings).
struct Slice {
  std::string name;
  Index at = 0;
  Index elements = 0;
};

/// One flat group, or one parameter of a universal checkpoint.
struct StateGroup {
  std::vector<FileTensor>
      slots;                  ///< named "fp32", "exp_avg", …; vectors, or of a parameter's shape
  std::vector<Slice> slices;  ///< of stages 1 and 2
  bool has_slices = false;    ///< whether the file contains them
  std::vector<FileTensor> step;  ///< one entry if the step is a tensor
  std::optional<double> steps;   ///< its value
};

/// A file of optimizer states.
struct OptimizerStates {
  std::int64_t stage = 0;
  Index ranks = 0;  ///< over which groups are cut; 0: not stated
  std::string version;
  std::vector<StateGroup> groups;
  std::string settings;                ///< pickled list of param_groups; "" for none
  bool scales_loss = false;            ///< with a dynamic scale
  bool weights_alone = false;          ///< the state is that before the first step (universal.hpp)
  std::vector<std::string> stand_ins;  ///< files that the source had nothing of (universal.hpp)
  std::vector<StorageRecord> records;
};

constexpr auto wire_fields(NamedShape const&) {
  using T = NamedShape;
  return std::tuple(&T::name, &T::shape);
}
constexpr auto wire_fields(ModelStates const&) {
  using T = ModelStates;
  return std::tuple(&T::module, &T::groups, &T::frozen, &T::frozen_parts, &T::shared,
                    &T::data_parallel, &T::model_parallel, &T::steps, &T::samples,
                    &T::has_optimizer, &T::version, &T::others, &T::records);
}
constexpr auto wire_fields(Slice const&) {
  using T = Slice;
  return std::tuple(&T::name, &T::at, &T::elements);
}
constexpr auto wire_fields(StateGroup const&) {
  using T = StateGroup;
  return std::tuple(&T::slots, &T::slices, &T::has_slices, &T::step, &T::steps);
}
constexpr auto wire_fields(OptimizerStates const&) {
  using T = OptimizerStates;
  return std::tuple(&T::stage, &T::ranks, &T::version, &T::groups, &T::settings, &T::scales_loss,
                    &T::weights_alone, &T::stand_ins, &T::records);
}

// Errors are of kind source with the path.

ModelStates read_model_states(File const& file);
OptimizerStates read_optimizer_states(File const& file);
/// zero/PARAMETER/SLOT.pt of a universal checkpoint: one group with one slot, or with a step.
OptimizerStates read_universal_file(File const& file, std::string const& slot);
/// zero/optimizer_state.pt: settings, and groups with only steps if the file has any: of stage 3,
/// whose parameters have no files step.pt (checkpoint/ds_to_universal.py,
/// _save_optimizer_state_stage3).
OptimizerStates read_universal_settings(File const& file);

}  // namespace reshard::deepspeed
