#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/formats/format.hpp"
#include "core/mapping/quant_finder.hpp"
#include "core/mapping/sides/side.hpp"

namespace reshard {

/// Stored names and their numbers in StoredTable::tensors; borrows the names.
using NameTable = std::unordered_map<std::string_view, std::size_t>;

/// The content of one place of a source: all of it, or a rank's share of one pipeline chunk.
struct StoredShare {
  SidePlace place;
  std::size_t chunk = 0;         ///< in model order; 0 for a source without shares
  std::string where;             ///< the file or folder, for messages
  std::size_t first_tensor = 0;  ///< of a rank's share, in StoredTable::tensors
  NameTable tensors;
};

/// The places of a source, one after the other.
class StoredShares {
 public:
  /// All of them outlive this. `chunks` are those of a source whose storage is shares, in model
  /// order. A file with another number of chunks than its checkpoint has is an Error of kind
  /// source.
  StoredShares(Checkpoint const& source, StoredView const& view,
               std::span<PipelineChunk const> chunks);

  std::size_t size() const;
  StoredShare operator[](std::size_t number) const;
  /// The same without its names.
  StoredShare without_names(std::size_t number) const;
  /// The first place of the same pipeline chunk with an equal table (SharePlace::alike): at it, all
  /// names have the same meaning, and only ranks and bytes differ.
  std::size_t first_alike(std::size_t number) const;

  /// The stored names of each chunk, or those of the whole.
  std::vector<std::vector<StoredName>> names(Side const& side) const;

 private:
  void check_chunks() const;
  void find_alike();

  Checkpoint const& source_;
  StoredView const& view_;
  std::span<PipelineChunk const> chunks_;
  std::vector<std::size_t> alike_;  ///< by share; empty for a source without shares
};

/// Looks names up in `table`; borrows both.
FindTensor finder_over(NameTable const& table, StoredTable const& stored);

/// The pipeline chunks of a source whose storage is shares, in model order, for a model of so many
/// layers.
std::vector<PipelineChunk> source_chunks(Checkpoint const& source, Json const& args,
                                         Index decoder_layers, Index mtp_layers);

}  // namespace reshard
