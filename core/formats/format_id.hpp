#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace reshard {

/// What a job file can ask a checkpoint to be.
enum class FormatId {
  automatic,  ///< sources only: what is found
  megatron,
  huggingface,
  dcp,
  torch_dist,
  fsdp_dtensor,
  hdf5,
  deepspeed,
  fsdp_ranks  ///< sources only
};

/// The word of job files: "auto", "megatron", …
std::string_view name(FormatId format);
/// All of them, in the order of FormatId.
std::span<std::string_view const> format_names();
/// The inverse; nothing for any other word.
std::optional<FormatId> format_named(std::string_view word);

}  // namespace reshard
