#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/formats/format.hpp"

namespace reshard::test {

/// A tensor of a made checkpoint.
struct MadeTensor {
  std::string name;
  std::vector<Index> shape;
  DType dtype = DType::bf16;
};

/// A checkpoint as its headers would tell of it, without any file: what is planned from checkpoints
/// needs no more. Tensors follow each other in their file.
///
///   MadeCheckpoint made(FormatId::huggingface);
///   made.add_file({{"model.norm.weight", {32}}});
///   made.value.config = config;
class MadeCheckpoint {
 public:
  explicit MadeCheckpoint(FormatId id);

  /// A file with tensors in one piece each.
  MadeCheckpoint& add_file(std::vector<MadeTensor> const& tensors);
  /// Storage::shares: a file with what one rank has. `label` names its folder: "mp_rank_00_001".
  MadeCheckpoint& add_share(SharePlace place, std::vector<MadeTensor> const& tensors);
  /// Storage::chunks: a tensor cut evenly into so many parts along each dimension, in the last
  /// file.
  MadeCheckpoint& add_cut(MadeTensor const& tensor, std::vector<Index> const& parts);
  /// A value that is no tensor, in the last file, looked at and found to be plain data.
  MadeCheckpoint& add_object(std::string name);
  /// The last file ends here.
  MadeCheckpoint& begin_file();

  Checkpoint value;

 private:
  ItemPlace take_bytes(std::uint64_t bytes);
  void add_whole(MadeTensor const& tensor);

  std::uint64_t end_bytes_ = 0;  ///< of the last file so far
};

/// A plain DCP checkpoint: one file with these tensors in one piece each.
MadeCheckpoint made_dcp(std::vector<MadeTensor> const& tensors);

std::uint64_t bytes_of(MadeTensor const& tensor);

}  // namespace reshard::test
