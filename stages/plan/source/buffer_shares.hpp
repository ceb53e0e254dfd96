#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/formats/megatron/flat_buffer.hpp"
#include "core/formats/stored_view.hpp"
#include "core/mapping/side.hpp"

namespace reshard {

/// A parameter of a rank.
struct RankParameter {
  std::uint32_t name = 0;  ///< number among the stored names of its pipeline chunk
  Index elements = 0;
};

/// What one flat buffer of a rank holds, in order of registration.
struct BufferShare {
  std::size_t chunk = 0;  ///< pipeline chunk, in model order
  std::string weights;    ///< dtype of its parameters
  std::vector<RankParameter> parameters;
};

/// What the layout of a save says about flat buffers.
struct BufferModel {
  Model const& model;
  MapFile const& map;  ///< of Megatron: registration order, buffers
  Side const& side;    ///< local, of the save's mesh
  std::vector<PipelineChunk> const& chunks;
  std::vector<std::optional<DType>> const& dtypes;  ///< of the source's weights, by logical tensor
  bool experts_apart = false;                       ///< experts have an optimizer of their own
};

/// Which parameters stand in which buffer.
class BufferShares {
 public:
  /// All of `model` outlives this.
  explicit BufferShares(BufferModel const& model);

  /// The buffers of one rank's optimizer, in order: those of each of its pipeline chunks, one for
  /// each dtype in order of its first parameter.
  std::vector<BufferShare> of(MeshPlace const& place, int pipeline_rank, bool experts);
  StoredName const& name(BufferShare const& share, RankParameter const& parameter) const {
    return names_[share.chunk][parameter.name];
  }

 private:
  std::vector<std::uint32_t> ordered(std::size_t chunk, bool experts);
  std::string dtype_of(StoredName const& name) const;
  Index elements(StoredName const& name, SidePlace const& place) const;

  BufferModel const& model_;
  std::vector<std::vector<StoredName>> names_;  ///< by chunk
  std::map<std::pair<std::size_t, bool>, std::vector<std::uint32_t>> order_;
};

}  // namespace reshard
