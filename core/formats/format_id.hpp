#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace reshard {

/// The formats of checkpoints in job files.
enum class FormatId {
  automatic,  ///< sources only: detected
  megatron,
  huggingface,
  dcp,
  torch_dist,
  fsdp_dtensor,
  hdf5,
  deepspeed,
  fsdp_ranks,  ///< sources only
  mistral
};

/// The word of job files: "auto", "megatron", …
std::string_view name(FormatId format);
/// All of them, in the order of FormatId.
std::span<std::string_view const> format_names();
/// The inverse; nullopt for any other word.
std::optional<FormatId> format_named(std::string_view word);
/// "huggingface" for "hf"; any other word as it is.
std::string_view full_format_word(std::string_view word);

}  // namespace reshard
