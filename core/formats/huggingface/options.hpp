#pragma once

#include <cstdint>
#include <string>

#include "core/formats/targets/format_option.hpp"

namespace reshard::huggingface {

/// How weights of a target are quantised while it is made.
enum class MadeQuant {
  none,
  fp8_block,
  fp8_channel,
  mxfp8,
  int4_group,
  int8_group,
  int8_channel,
  mxfp4,
  nvfp4
};
/// Whose form of it: the one that engines read best, or a given library's.
enum class QuantFor { automatic, compressed_tensors, transformers, modelopt };
enum class QuantScales { automatic, f32, e8m0 };

/// The keys of a Hugging Face target.
struct TargetOptions {
  std::string reference;  ///< a folder whose config and tokenizer files are taken; "" for none
  std::uint64_t shard_bytes = 5'000'000'000;  ///< the most in a file, except for one larger tensor
  MadeQuant quant = MadeQuant::none;
  QuantFor quant_for = QuantFor::automatic;
  std::string quant_block;  ///< "128x128", of groups "128"; "" for the usual one
  QuantScales quant_scales = QuantScales::automatic;
  std::string quant_ignore;  ///< patterns of modules that are left as well, ';' between them
  friend bool operator==(TargetOptions const&, TargetOptions const&) = default;
};

FormatOptions<TargetOptions> target_options();

}  // namespace reshard::huggingface
