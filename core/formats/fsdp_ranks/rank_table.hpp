#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/fsdp_ranks/rank_header.hpp"

namespace reshard::fsdp_ranks {

/// The headers of the files of all ranks of one kind. Ranks with files of one form share it.
struct RankFiles {
  std::uint32_t first_file = 0;      ///< of Checkpoint::files: rank 0's
  std::vector<FileForm> forms;       ///< the distinct ones
  std::vector<std::size_t> form_of;  ///< by rank: in `forms`
  std::vector<RankHeader> ranks;     ///< by rank; their own `form` is empty

  FileForm const& form(std::size_t rank) const { return forms[form_of[rank]]; }
};

/// One tensor, as described by the first rank that has a part of it.
struct RankTensor {
  TensorForm const* form = nullptr;
  MeshForm const* mesh = nullptr;  ///< of a placed one
  /// The ranks with a part, and the tensor's index in their form.
  std::vector<std::pair<std::size_t, std::size_t>> holders;
};

/// All tensors, in the order of the first rank's file, then those that only others have. Errors of
/// kind source: two ranks that describe a tensor differently.
std::vector<RankTensor> tensors_of(RankFiles const& files, Checkpoint const& checkpoint);

/// Adds a tensor under a name: a chunk for each box of a rank. Of replicas one is taken, of another
/// rank for each tensor, so that all files are read. Errors of kind source: a rank with another
/// number of rows than by its mesh and placements, a part that no rank has.
void add_tensor(RankTensor const& tensor, std::string name, RankFiles const& files,
                Checkpoint& checkpoint);

/// add_tensor() for a tensor that is complete on every rank: only the chunk of the first rank.
void add_first(RankTensor const& tensor, std::string name, RankFiles const& files,
               Checkpoint& checkpoint);

/// Adds the records of the files.
void add_records(RankFiles const& files, Checkpoint& checkpoint);

/// The CRC-32 of the first record that a part of a tensor fills; nullopt if none is known.
std::optional<std::uint32_t> first_crc32(RankTensor const& tensor, RankFiles const& files);

/// Throws an Error of kind source if replicas of a tensor differ by their CRC-32s, or if a record
/// of a file contradicts its CRC-32 (RankHeader::damage).
void refuse_unequal_replicas(std::span<RankTensor const> tensors, RankFiles const& files,
                             Checkpoint const& checkpoint);

}  // namespace reshard::fsdp_ranks
