#include "core/formats/format_id.hpp"

#include <array>
#include <utility>

namespace reshard {
namespace {

constexpr std::array<std::pair<FormatId, std::string_view>, 7> words = {
    {{FormatId::automatic, "auto"},
     {FormatId::megatron, "megatron"},
     {FormatId::huggingface, "huggingface"},
     {FormatId::dcp, "dcp"},
     {FormatId::torch_dist, "torch_dist"},
     {FormatId::fsdp_dtensor, "fsdp_dtensor"},
     {FormatId::hdf5, "hdf5"}}};

}  // namespace

std::string_view name(FormatId format) { return words[static_cast<std::size_t>(format)].second; }

std::optional<FormatId> format_named(std::string_view word) {
  for (auto const& [format, text] : words)
    if (text == word) return format;
  return std::nullopt;
}

}  // namespace reshard
