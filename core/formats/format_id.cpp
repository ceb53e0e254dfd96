#include "core/formats/format_id.hpp"

#include <array>

namespace reshard {
namespace {

/// In the order of FormatId.
constexpr std::array<std::string_view, 10> words = {
    "auto",         "megatron", "huggingface", "dcp",        "torch_dist",
    "fsdp_dtensor", "hdf5",     "deepspeed",   "fsdp_ranks", "mistral"};

}  // namespace

std::span<std::string_view const> format_names() { return words; }

std::string_view name(FormatId format) { return words[static_cast<std::size_t>(format)]; }

std::optional<FormatId> format_named(std::string_view word) {
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] == word) return static_cast<FormatId>(i);
  return std::nullopt;
}

std::string_view full_format_word(std::string_view word) {
  return word == "hf" ? name(FormatId::huggingface) : word;
}

}  // namespace reshard
