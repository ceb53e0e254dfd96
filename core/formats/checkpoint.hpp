#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/dcp/metadata.hpp"
#include "core/containers/dcp/object_look.hpp"
#include "core/containers/hdf5/container.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/containers/stored_record.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/megatron/classify.hpp"
#include "core/formats/megatron/directory.hpp"
#include "core/formats/megatron/shard.hpp"

namespace reshard {

/// A Megatron directory with everything its headers say. `headers` is parallel to directory.shards.
struct MegatronCheckpoint {
  megatron::Directory directory;
  megatron::Classification classification;
  std::vector<megatron::ShardHeader> headers;
};

/// A Hugging Face folder with its headers; `headers` and `indexed` are parallel to folder.files.
/// Only the indexed tensors are the checkpoint's.
struct HuggingFaceCheckpoint {
  huggingface::Folder folder;
  std::vector<safetensors::Header> headers;
  std::vector<std::vector<std::size_t>> indexed;
};

/// What tensors of a checkpoint lie in.
enum class TensorContainer {
  items,        ///< .distcp files
  safetensors,  ///< HuggingFaceStorageWriter's; there are no objects
  hdf5,         ///< one dataset per tensor
};

/// A PyTorch distributed checkpoint, or another set of boxes of tensors under the names of a state
/// dict: whole tensors in boxes. Flattened optimizer tensors have been given the shape that they
/// have in the model.
struct DcpCheckpoint {
  dcp::Directory directory;
  dcp::Flavour flavour = dcp::Flavour::plain;
  dcp::Metadata metadata;
  std::vector<std::uint64_t>
      payload_offset_bytes;  ///< of each chunk: its first element, from the start of its file
  std::map<std::size_t, std::vector<Index>>
      strides;                             ///< of the chunks that are not row-major, in elements
  std::optional<dcp::CommonState> common;  ///< torch_dist
  std::vector<dcp::ObjectLook> looks;      ///< parallel to the objects; empty: not looked at yet
  TensorContainer container = TensorContainer::items;
  Json config;             ///< the config.json that travels in an HDF5 container; null for none
  bool flattened = false;  ///< some tensors were flattened on disk
};

/// The logical tensors of a model in HDF5 containers of ours (docs/formats/hdf5.md); `parts` is
/// parallel to the files.
struct LogicalCheckpoint {
  std::filesystem::path folder;
  std::vector<hdf5::Found> parts;
  std::string map;          ///< of the family, "" for none
  Json config;              ///< config.json; null for none
  std::string config_text;  ///< its bytes
  Json args;                ///< Megatron's; null for none
  Index vocab = 0;          ///< rows of the vocabulary that mean something
  Index prediction_layers = 0;
};

/// A checkpoint on disk, read as far as its headers: exactly one of the four.
struct SourceCheckpoint {
  std::optional<MegatronCheckpoint> megatron;
  std::optional<HuggingFaceCheckpoint> huggingface;
  std::optional<DcpCheckpoint> dcp;
  std::optional<LogicalCheckpoint> logical;
  std::vector<std::filesystem::path> files;  ///< those with tensors, in the order of the headers
  std::vector<FileStamp> stamps;  ///< of each file, from a descriptor that read its header, before
                                  ///< that; the same on every rank
  std::vector<int> stamped_by;    ///< which rank it was
  std::vector<StoredRecord> records;  ///< zip records with weights, where files have any
  std::vector<TensorDigest>
      recorded;  ///< digests that stand in the files themselves (HDF5 containers)
  std::vector<std::string> warnings;
};

}  // namespace reshard
