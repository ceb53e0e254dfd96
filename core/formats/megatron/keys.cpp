#include "core/formats/megatron/keys.hpp"

#include <algorithm>
#include <charconv>
#include <string>

#include <fmt/format.h>

#include "core/formats/megatron/headers/classify.hpp"
#include "core/formats/megatron/headers/shard.hpp"
#include "core/formats/megatron/mcore/root.hpp"

namespace reshard::megatron {
bool is_expert(std::string_view name) { return name.find(".experts.") != std::string_view::npos; }

int decoder_layer(std::string_view name) {
  constexpr std::string_view word = "decoder.layers.";
  if (is_of_tower(name)) return -1;
  auto const at = name.find(word);
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) return -1;
  name.remove_prefix(at + word.size());
  int layer = -1;
  auto const [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc() && end != name.data() + name.size() && *end == '.' && layer >= 0
             ? layer
             : -1;
}

namespace {

/// Rows of one expert's fc1. nullopt for the flat weights of GroupedMLP, whose shape counts all
/// experts, and for packed bytes and scales of quantised weights.
std::optional<Index> fc1_rows(FileTensor const& tensor) {
  std::string_view const name = tensor.name;
  auto const at = name.find(".experts.");
  if (at == std::string_view::npos) return std::nullopt;
  auto const rest = name.substr(at);
  constexpr std::string_view word = ".linear_fc1.weight";
  auto const found = rest.find(word);
  if (found == std::string_view::npos || bits(tensor.dtype) < 16) return std::nullopt;
  if (rest.find_first_not_of("0123456789", found + word.size()) != std::string_view::npos)
    return std::nullopt;
  if (tensor.shape.size() == 2) return tensor.shape[0];
  if (tensor.shape.size() == 3) return tensor.shape[1];
  return std::nullopt;
}

std::uint64_t fnv1a(std::uint64_t hash, std::string_view text) {
  for (char const c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

void summarize_tensor(KeySummary& summary, FileTensor const& tensor) {
  std::string_view const name = tensor.name;
  if (is_of_tower(name)) return;
  auto const has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  summary.embedding = summary.embedding || has("embedding.word_embeddings.weight");
  summary.head = summary.head || has("output_layer.");
  bool const mtp = name.starts_with("mtp.") || has(".mtp.");
  summary.final_norm = summary.final_norm ||
                       (!mtp && (has("decoder.final_layernorm.") || has("decoder.final_norm.")));
  summary.mtp = summary.mtp || mtp;
  summary.experts = summary.experts || is_expert(name);
  if (!summary.expert_fc1_rows) summary.expert_fc1_rows = fc1_rows(tensor);
  int const layer = decoder_layer(name);
  if (layer < 0) return;
  summary.first_layer = summary.first_layer < 0 ? layer : std::min(summary.first_layer, layer);
  summary.last_layer = std::max(summary.last_layer, layer);
}

}  // namespace

KeySummary summarize_keys(ShardHeader const& header) {
  KeySummary summary;
  summary.chunks = static_cast<int>(header.chunks.size());
  std::vector<std::string> dense;
  for (std::size_t chunk = 0; chunk < header.chunks.size(); ++chunk)
    for (auto const& tensor : header.chunks[chunk].tensors) {
      summarize_tensor(summary, tensor);
      if (is_expert(tensor.name)) continue;
      auto line = fmt::format("{}\n{}\n{}", chunk, tensor.name, name(tensor.dtype));
      for (Index const extent : tensor.shape) line += fmt::format(" {}", extent);
      dense.push_back(std::move(line));
    }
  std::sort(dense.begin(), dense.end());  // the order of a dict's keys is no evidence
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (auto const& line : dense) hash = fnv1a(fnv1a(hash, line), "\n\n");
  summary.dense_hash = hash;
  return summary;
}

}  // namespace reshard::megatron
