#pragma once

#include <filesystem>
#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// Which format a source must have; `found` takes what is there.
enum class SourceFormat { found, megatron, huggingface, dcp, hdf5 };

/// An Error of kind source when `path` cannot be a checkpoint: not there, neither directory nor HDF5 file, a Hugging Face folder without weights.
void check_checkpoint_folder(std::filesystem::path const& path);

/// "megatron", "huggingface", "dcp", "torch_dist", "fsdp_dtensor", "hdf5": what a job file calls it.
std::string_view format_of(SourceCheckpoint const& source);

/// Reads every header of a checkpoint: each rank its share of the files, exchanged in one collective; every rank returns the same.
/// Collective. Errors are of kind source (damage, unknown format), the same on every rank.
SourceCheckpoint open_source(std::filesystem::path const& path, SourceFormat format, megatron::UserSizes const& user, Comm const& comm);

}  // namespace reshard
