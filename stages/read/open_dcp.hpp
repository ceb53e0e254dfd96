#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// The *.safetensors files of a folder, by name; a link out of the folder is an Error of kind
/// source.
std::vector<std::filesystem::path> safetensors_files(std::filesystem::path const& path);

/// Boxes of tensors in safetensors files, from their headers.
DcpCheckpoint boxed_checkpoint(std::filesystem::path const& path,
                               std::span<std::filesystem::path const> files,
                               std::span<safetensors::Header const> headers);

/// Whether the folder holds boxes of tensors in safetensors files, as torch's
/// HuggingFaceStorageWriter leaves them before consolidation.
bool looks_like_boxed_safetensors(std::filesystem::path const& path);

/// Reads a PyTorch distributed checkpoint as far as its tensors' places: `.metadata` on every rank,
/// the head of each item on one of them. Collective. Errors are of kind source, the same on every
/// rank.
SourceCheckpoint open_dcp(std::filesystem::path const& path, Comm const& comm);
/// As open_dcp, but only `.metadata` is read: payloads' places stay unknown and flattened tensors
/// flat.
SourceCheckpoint open_dcp_metadata(std::filesystem::path const& path, Comm const& comm);
/// The same for boxes in safetensors files.
SourceCheckpoint open_boxed_safetensors(std::filesystem::path const& path, Comm const& comm);

}  // namespace reshard
