#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/run/run_record.hpp"
#include "core/formats/targets/target.hpp"
#include "core/formats/torch_dist/fsdp_settings.hpp"

namespace reshard {

/// The inputs of the common state of a torch_dist target.
struct DistRecord {
  RunRecord const* record = nullptr;  ///< the source's; nullptr: all is made from `args`
  std::vector<std::pair<std::string, Json>> args;  ///< attributes to set
  bool new_keys = false;       ///< content_metadata must describe the keys that we write
  bool singleton = false;      ///< experts, and gate and up, have keys of their own
  bool has_states = false;     ///< optimizer state is among them
  bool drop_states = false;    ///< the source's optimizer settings are left out
  bool expert_biases = false;  ///< experts have biases
  bool experts_apart = false;  ///< Megatron will have a separate optimizer for experts, as it has
                               ///< if ep is above 1
  /// The optimizer settings of a source of another format (common_settings()); nullptr: those of
  /// the record.
  pickle::Document const* settings = nullptr;
  bool plain_states = false;  ///< the optimizer is not distributed: its keys differ
  bool numbered = false;      ///< run_folder()
  std::string without = {};   ///< a file next to a torch_dist source that is not copied; "": none
};

/// The objects of a Megatron-FSDP checkpoint that describe it: args, checkpoint_version, iteration
/// and the other values of a record, each as its torch.save'd bytes; of a dict each value.
std::vector<dcp::PlacedObject> fsdp_objects(DistRecord const& dist);

/// common.pt of a source in another format: args, counters, scheduler and the optimizer's settings.
std::string made_common_text(DistRecord const& dist);

/// The tracker of a Megatron root.
void add_tracker(TargetDraft& job, RunRecord const* record, bool numbered = false);

/// Adds the files next to the items of a torch_dist checkpoint: common.pt, metadata.json, the
/// tracker, and files of other programs next to a torch_dist source. Errors of kind source: state
/// that would run code when it is loaded.
void add_dist_files(TargetDraft& job, DistRecord const& dist, Checkpoint const& source);

}  // namespace reshard
