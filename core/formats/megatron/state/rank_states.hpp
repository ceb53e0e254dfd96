#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/state/rank_state.hpp"
#include "core/formats/stored_view.hpp"

namespace reshard::megatron {

/// The optimizer state of all mp_rank folders, in addition to the table of stored tensors.
struct RankStates {
  bool distributed = false;           ///< saved by the distributed optimizer: in distrib_optim.pt
  std::vector<std::string> slots;     ///< "param", "exp_avg", …
  std::vector<FlatBuffer> buffers;    ///< of the distributed optimizer
  std::vector<StateList> lists;       ///< of others
  std::vector<std::string> settings;  ///< the distinct FileState::settings
  std::vector<std::string> places;    ///< the first files of `settings`
};

/// The optimizer state of the files of a checkpoint. Files with equal state at equal offsets share
/// one FileState.
struct FileStates {
  std::vector<FileState> different;  ///< without the values of OwnFileState
  std::vector<std::size_t> number;   ///< by file
  std::vector<OwnFileState> own;     ///< by file

  FileState const& of(std::size_t file) const { return different[number[file]]; }
};

/// The distrib_optim.pt of the shards, in their order.
FilePaths distributed_files(Directory const& directory);

/// Whether all optimizer state of the folders has a form that add_rank_states() supports.
bool has_known_states(Directory const& directory);

/// Adds the states of `files`, parallel to checkpoint.files, to the tables and rank_states.
/// `shards` has the shard of each file. Settings of a distributed optimizer without any file of its
/// state are an Error of kind source.
void add_rank_states(Checkpoint& checkpoint, FileStates const& files,
                     std::vector<std::size_t> const& shards);

}  // namespace reshard::megatron
