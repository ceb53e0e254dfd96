#pragma once

#include <cstdint>
#include <string>

#include "core/formats/format_option.hpp"

namespace reshard::huggingface {

/// The keys of a Hugging Face target.
struct TargetOptions {
  std::string reference;  ///< a folder whose config and tokenizer files are taken; "" for none
  std::uint64_t shard_bytes = 5'000'000'000;  ///< the most in a file, except for one larger tensor
  friend bool operator==(TargetOptions const&, TargetOptions const&) = default;
};

FormatOptions<TargetOptions> target_options();

}  // namespace reshard::huggingface
