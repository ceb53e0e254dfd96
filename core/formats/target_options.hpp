#pragma once

#include "core/formats/dcp/options.hpp"
#include "core/formats/hdf5/options.hpp"
#include "core/formats/huggingface/options.hpp"
#include "core/formats/megatron/options.hpp"

namespace reshard {

/// The dtype of the target's floating weights: theirs, a given one, or the one that config.json
/// states.
enum class TargetDType { keep, bf16, f16, f32, as_config };

/// The keys of [target] that some formats alone read. They are given before it is known which
/// format the target has, so a job holds those of all.
struct TargetOptions {
  huggingface::TargetOptions huggingface;
  hdf5::TargetOptions hdf5;
  dcp::TargetOptions dcp;
  dcp::DistOptions dist;        ///< torch_dist, fsdp_dtensor
  megatron::NameOptions named;  ///< all formats with Megatron's names
  megatron::TargetOptions megatron;
  friend bool operator==(TargetOptions const&, TargetOptions const&) = default;
};

/// Their rows, in the order of the default job file.
FormatOptions<TargetOptions> all_target_options();

}  // namespace reshard
