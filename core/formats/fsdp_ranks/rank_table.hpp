#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/fsdp_ranks/rank_header.hpp"

namespace reshard::fsdp_ranks {

/// What the files of all ranks of one kind say. Ranks whose files have one form share it.
struct RankFiles {
  std::uint32_t first_file = 0;      ///< of Checkpoint::files: rank 0's
  std::vector<FileForm> forms;       ///< each different one
  std::vector<std::size_t> form_of;  ///< by rank: in `forms`
  std::vector<RankHeader> ranks;     ///< by rank; their own `form` is empty

  FileForm const& form(std::size_t rank) const { return forms[form_of[rank]]; }
};

/// One tensor, as the first rank that holds any of it describes it.
struct RankTensor {
  TensorForm const* form = nullptr;
  MeshForm const* mesh = nullptr;  ///< of a placed one
  /// Who holds a part: rank, and the tensor's place in its form.
  std::vector<std::pair<std::size_t, std::size_t>> holders;
};

/// All tensors, in the order of the first rank's file, then of what others have beyond. Errors of
/// kind source: two ranks that describe a tensor differently.
std::vector<RankTensor> tensors_of(RankFiles const& files, Checkpoint const& checkpoint);

/// Adds a tensor under a name: a chunk for each box that a rank holds. Of replicas one is taken, of
/// another rank for each tensor, so that all files are read. Errors of kind source: a rank that
/// holds another number of rows than its mesh and placements give it, a part that no rank holds.
void add_tensor(RankTensor const& tensor, std::string name, RankFiles const& files,
                Checkpoint& checkpoint);

/// The same of one that every rank holds completely: a chunk of the first rank's alone.
void add_first(RankTensor const& tensor, std::string name, RankFiles const& files,
               Checkpoint& checkpoint);

/// Records of the files.
void add_records(RankFiles const& files, Checkpoint& checkpoint);

/// The CRC-32 of the first record that a part of a tensor fills; nothing where none is known.
std::optional<std::uint32_t> first_crc32(RankTensor const& tensor, RankFiles const& files);

/// An Error of kind source where two ranks that must hold the same of a tensor do not, by the
/// CRC-32s, or where a record of a file is not what its CRC-32 says (RankHeader::damage).
void refuse_unequal_replicas(std::span<RankTensor const> tensors, RankFiles const& files,
                             Checkpoint const& checkpoint);

}  // namespace reshard::fsdp_ranks
