#pragma once

#include "core/formats/dcp/options.hpp"
#include "core/formats/hdf5/options.hpp"
#include "core/formats/huggingface/options.hpp"
#include "core/formats/megatron/options.hpp"

namespace reshard {

/// The dtype of the target's floating weights: unchanged, a given one, or the one in config.json.
enum class TargetDType { keep, bf16, f16, f32, as_config };

/// The keys of [target] that only some formats read. They are parsed before the target's format is
/// known, so a job has those of all formats.
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
