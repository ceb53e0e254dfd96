#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/base/text/wire.hpp"
#include "core/containers/file_tensor.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard {

constexpr auto wire_fields(FileTensor const&) {
  using T = FileTensor;
  return std::tuple(&T::name, WireEnum{&T::dtype, last_dtype}, &T::shape, &T::strides,
                    &T::offset_bytes, &T::size_bytes);
}

constexpr auto wire_fields(StorageRecord const&) {
  using T = StorageRecord;
  return std::tuple(&T::offset_bytes, &T::size_bytes, &T::crc32);
}

namespace megatron {

// The optimizer state that one rank of Megatron saves with its weights: in distrib_optim.pt with
// the distributed optimizer, else inside model_optim_rng.pt. Tensors are named by their slot
// ("exp_avg").

inline constexpr std::string_view distributed_file_name = "distrib_optim.pt";
/// The words for master weights: inside model_optim_rng.pt, as torch_dist has it; in
/// distrib_optim.pt.
inline constexpr std::string_view master_slot = "fp32_param";
inline constexpr std::string_view distributed_master_slot = "param";

/// A flat buffer of the distributed optimizer: one vector for each slot, all of one length.
struct StateBuffer {
  Index chain = 0;      ///< number of the optimizer
  Index number = 0;     ///< of the buffer
  std::string weights;  ///< dtype of the parameters, "bfloat16"
  std::vector<FileTensor> states;
};

/// Parameters of one optimizer with the same settings, in order of registration: the states of each
/// have its shape.
struct StateGroup {
  Index chain = 0;
  bool decays = true;      ///< its weights decay
  bool decoupled = false;  ///< embedding and output layer, with a learning rate of their own
  std::vector<std::vector<FileTensor>> members;
};

/// The optimizer state of one file.
struct FileState {
  std::vector<StateBuffer> buffers;
  std::vector<StateGroup> groups;
  std::vector<StorageRecord> records;  ///< those with states and a CRC-32
  std::string settings;                ///< pickled list of optimizer_settings(); "" for none
  std::vector<FileTensor> steps;       ///< torch's AdamW counts them for each parameter
  std::optional<double> torch_steps;   ///< the value of these
};

/// The own values of a file among those with equal state at equal offsets.
struct OwnFileState {
  std::vector<std::uint32_t> crc32;   ///< by FileState::records
  std::optional<double> torch_steps;  ///< as FileState
};

constexpr auto wire_fields(OwnFileState const&) {
  using T = OwnFileState;
  return std::tuple(&T::crc32, &T::torch_steps);
}
constexpr auto wire_fields(StateBuffer const&) {
  using T = StateBuffer;
  return std::tuple(&T::chain, &T::number, &T::weights, &T::states);
}
constexpr auto wire_fields(StateGroup const&) {
  using T = StateGroup;
  return std::tuple(&T::chain, &T::decays, &T::decoupled, &T::members);
}
constexpr auto wire_fields(FileState const&) {
  using T = FileState;
  return std::tuple(&T::buffers, &T::groups, &T::records, &T::settings, &T::torch_steps);
}

/// The state of distrib_optim.pt. Errors of kind source, with the path: damage, state from before
/// Megatron Core 0.7, vectors whose lengths or dtypes disagree.
FileState distributed_state(TorchFile const& torch, std::string const& path);

/// The state of model_optim_rng.pt: settings, and state if it is in this file. Errors of kind
/// source: groups and states that disagree.
FileState shard_state(TorchFile const& torch, std::string const& path);

/// Replaces FileState::steps by their value. Errors of kind source, with the path: parameters at
/// different steps.
void read_steps(FileState& state, File const& file);

/// The optimizers of a model_optim_rng.pt, in order: the value of "optimizer", or the members of
/// that list.
std::vector<pickle::NodeId> optimizers_of(pickle::Document const& shard);

/// Whether the weights of a parameter group decay; whether it has its own learning rate (embedding
/// and output layer).
bool group_decays(pickle::Document const& document, pickle::NodeId group);
bool group_is_decoupled(pickle::Document const& document, pickle::NodeId group);

/// Appends to `settings` the dict of an optimizer of `from` without values of single parameters:
/// {"optimizer": {"param_groups": […]}} or {"param_groups": […]}.
pickle::NodeId add_settings(pickle::Document& settings, pickle::Document const& from,
                            pickle::NodeId optimizer);

}  // namespace megatron
}  // namespace reshard
