#pragma once

#include <filesystem>
#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "core/transport/comm.hpp"
#include "stages/read/recognise.hpp"

namespace reshard {

/// "megatron", "huggingface", "dcp", "torch_dist", "fsdp_dtensor", "hdf5": what a job file calls
/// it.
std::string_view format_of(SourceCheckpoint const& source);

/// Reads every header of a checkpoint: each rank its share of the files, exchanged in one
/// collective; every rank returns the same. Collective. Errors are of kind source (damage, unknown
/// format), the same on every rank.
SourceCheckpoint open_source(std::filesystem::path const& path, SourceFormat format,
                             megatron::UserSizes const& user, Comm const& comm);

}  // namespace reshard
