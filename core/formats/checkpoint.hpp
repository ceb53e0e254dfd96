#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/formats/huggingface/folder.hpp"
#include "core/formats/megatron/classify.hpp"
#include "core/formats/megatron/directory.hpp"
#include "core/formats/megatron/shard.hpp"
#include "core/formats/safetensors/safetensors.hpp"

namespace reshard {

/// A Megatron directory with everything its headers say. `headers` is parallel to directory.shards.
struct MegatronCheckpoint {
  megatron::Directory directory;
  megatron::Classification classification;
  std::vector<megatron::ShardHeader> headers;
};

/// A Hugging Face folder with its headers; `headers` and `indexed` are parallel to folder.files. Only the indexed tensors are the checkpoint's.
struct HuggingFaceCheckpoint {
  huggingface::Folder folder;
  std::vector<safetensors::Header> headers;
  std::vector<std::vector<std::size_t>> indexed;
};

/// A checkpoint on disk, read as far as its headers: exactly one of the two.
struct SourceCheckpoint {
  std::optional<MegatronCheckpoint> megatron;
  std::optional<HuggingFaceCheckpoint> huggingface;
  std::vector<std::filesystem::path> files;  ///< those with tensors, in the order of the headers
  std::vector<std::string> warnings;
};

}  // namespace reshard
