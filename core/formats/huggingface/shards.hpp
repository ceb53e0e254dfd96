#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/huggingface/reference_weights.hpp"

namespace reshard::huggingface {

/// 5 GB, decimal, as huggingface_hub counts.
inline constexpr std::uint64_t default_largest_shard_bytes = 5'000'000'000;

/// The index of Mistral's own files.
inline constexpr std::string_view consolidated_index_name = "consolidated.safetensors.index.json";

/// Weights under Mistral's own names.
inline bool is_consolidated(std::string const& name) {
  return shard_name_problem(name).empty() && matches_glob("consolidated*", name);
}

/// A weight file that may be the only one of a folder: not Mistral's own, whose repositories hold
/// the same weights a second time (docs/formats/huggingface.md, rule 3).
inline bool is_single_candidate(std::string const& name) {
  return shard_name_problem(name).empty() && !is_consolidated(name);
}

/// Weights that torch.save wrote.
inline bool is_pickled(std::string const& name) {
  return matches_glob("pytorch_model*.bin", name) || matches_glob("adapter_model*.bin", name);
}

/// One file to be written.
struct ShardFile {
  std::string name;
  std::vector<std::size_t>
      tensors;  ///< positions in the list given to plan_shards; plan.offset_bytes is in this order
  safetensors::FilePlan plan;
};

/// Distributes tensors over files, in the order given; every tensor goes to exactly one file.
///
/// Without a reference: greedy, as huggingface_hub does. A tensor larger than the limit gets a file
/// of its own and the file under construction stays open. One file is "model.safetensors", more are
/// model-00001-of-000NN.safetensors.
///
/// With a reference: every tensor goes to the file that the reference names, whatever its size.
/// Tensors that the reference does not know are split greedily over files
/// model-added-00001-of-000NN.safetensors, so that no reference file changes. A file of the tensors
/// that it has in the reference gets the header that it has there, and any other the same
/// `__metadata__`, unless the target is laid out for clones. `metadata` counts before the
/// reference's where a header is not that of the reference.
std::vector<ShardFile> plan_shards(std::span<TensorSpec const> tensors,
                                   std::uint64_t largest_shard_bytes, ReferenceWeights& reference,
                                   DataLayout data_layout = DataLayout::usual,
                                   std::span<FileMetadata const> metadata = {},
                                   std::string_view stem = "model");
/// Without one. `stem`: "consolidated" gives consolidated.safetensors and so on.
std::vector<ShardFile> plan_shards(std::span<TensorSpec const> tensors,
                                   std::uint64_t largest_shard_bytes = default_largest_shard_bytes,
                                   DataLayout data_layout = DataLayout::usual,
                                   std::span<FileMetadata const> metadata = {},
                                   std::string_view stem = "model");

/// Whether loaders need an index beside these files: all but a lone model.safetensors do.
bool needs_index(std::span<ShardFile const> shards, std::string_view stem = "model");

/// model.safetensors.index.json as transformers writes it: two spaces a level, members sorted, a
/// final newline. `reference_metadata`: "metadata" of the reference's index or null; its unknown
/// members are kept, total_size is computed from the tensors, and so is total_parameters (elements
/// of all tensors) when the reference has it.
std::string index_json(std::span<ShardFile const> shards, std::span<TensorSpec const> tensors,
                       Json const& reference_metadata = {});

}  // namespace reshard::huggingface
