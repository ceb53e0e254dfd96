#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/huggingface/reference_weights.hpp"

namespace reshard::huggingface {

/// 5 GB, decimal, as huggingface_hub counts.
inline constexpr std::uint64_t default_largest_shard_bytes = 5'000'000'000;

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
                                   std::span<FileMetadata const> metadata = {});
/// Without one.
std::vector<ShardFile> plan_shards(std::span<TensorSpec const> tensors,
                                   std::uint64_t largest_shard_bytes = default_largest_shard_bytes,
                                   DataLayout data_layout = DataLayout::usual,
                                   std::span<FileMetadata const> metadata = {});

/// Whether loaders need an index beside these files: all but a lone model.safetensors do.
bool needs_index(std::span<ShardFile const> shards);

/// model.safetensors.index.json as transformers writes it: two spaces a level, members sorted, a
/// final newline. `reference_metadata`: "metadata" of the reference's index or null; its unknown
/// members are kept, total_size is computed from the tensors, and so is total_parameters (elements
/// of all tensors) when the reference has it.
std::string index_json(std::span<ShardFile const> shards, std::span<TensorSpec const> tensors,
                       Json const& reference_metadata = {});

}  // namespace reshard::huggingface
