#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/formats/dcp/directory.hpp"
#include "core/formats/dcp/metadata.hpp"
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

/// A PyTorch distributed checkpoint: whole tensors in boxes. Flattened optimizer tensors have been given the shape that they have in the model.
struct DcpCheckpoint {
  dcp::Directory directory;
  dcp::Flavour flavour = dcp::Flavour::plain;
  dcp::Metadata metadata;
  std::vector<std::uint64_t> payload_offset_bytes;    ///< of each chunk: its first element, from the start of its file
  std::map<std::size_t, std::vector<Index>> strides;  ///< of the chunks that are not row-major, in elements
  std::optional<dcp::CommonState> common;             ///< torch_dist
  bool safetensors = false;                           ///< the boxes lie in safetensors files (HuggingFaceStorageWriter); there are no objects
  bool flattened = false;                             ///< some tensors were flattened on disk
};

/// A checkpoint on disk, read as far as its headers: exactly one of the three.
struct SourceCheckpoint {
  std::optional<MegatronCheckpoint> megatron;
  std::optional<HuggingFaceCheckpoint> huggingface;
  std::optional<DcpCheckpoint> dcp;
  std::vector<std::filesystem::path> files;  ///< those with tensors, in the order of the headers
  std::vector<std::string> warnings;
};

}  // namespace reshard
