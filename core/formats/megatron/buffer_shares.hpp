#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/megatron/flat_buffer.hpp"
#include "core/mapping/side.hpp"

namespace reshard::megatron {

/// A parameter of a rank.
struct RankParameter {
  std::uint32_t name = 0;  ///< number among the stored names of its pipeline chunk
  Index elements = 0;
};

/// What one flat buffer of a rank holds, in order of registration.
struct BufferShare {
  std::size_t chunk = 0;  ///< pipeline chunk, in model order
  std::string weights;    ///< dtype of its parameters, "BF16"; "" where none is known
  std::vector<RankParameter> parameters;
};

/// What the layout of a save says about flat buffers.
struct BufferModel {
  Model const& model;
  MapFile const& map;  ///< of Megatron: registration order, buffers
  Side const& side;    ///< local, of the save's mesh
  Mesh const& mesh;
  std::vector<PipelineChunk> const& chunks;
  /// The dtype in which a side stores a weight; "" where the weight does not exist.
  std::function<std::string(StoredName const&)> dtype;
  bool experts_apart = false;  ///< experts have an optimizer of their own
  std::function<bool(StoredName const&)> trained = nullptr;  ///< an optimizer has it; nothing: all
};

/// Which parameters stand in which buffer, and where.
class BufferShares {
 public:
  /// What `model` refers to outlives this.
  explicit BufferShares(BufferModel model);

  /// The buffers of one rank's optimizer, in order: those of each of its pipeline chunks, one for
  /// each dtype in order of its first parameter.
  std::vector<BufferShare> of(MeshPlace const& place, int pipeline_rank, bool experts);
  /// The parameters of one rank's optimizer in order of registration, a share for each chunk.
  std::vector<BufferShare> parameters(MeshPlace const& place, int pipeline_rank, bool experts);
  /// What flat_layout() takes.
  std::vector<FlatParameter> flat(BufferShare const& share) const;
  /// Parameters that a rank of a pipeline stage has, over all chunks: all ranks have as many.
  Index rank_elements(int stage);

  StoredName const& name(BufferShare const& share, RankParameter const& parameter) const {
    return names_[share.chunk][parameter.name];
  }
  PipelineChunk const& chunk(BufferShare const& share) const { return model_.chunks[share.chunk]; }

 private:
  std::vector<std::uint32_t> ordered(std::size_t chunk, bool experts);
  Index elements(StoredName const& name, SidePlace const& place) const;
  bool is_shared(std::string_view name) const;

  BufferModel model_;
  std::vector<std::vector<StoredName>> names_;  ///< by chunk
  std::map<std::pair<std::size_t, bool>, std::vector<std::uint32_t>> order_;
};

/// Whether Megatron lets a parameter decay: vectors and biases are exempt, but for the norms of q
/// and k where args say so (apply_wd_to_qk_layernorm).
bool decays(std::string_view name, std::span<Index const> shape, Json const& args);
/// Whether a parameter may have a learning rate apart (`decoupled_lr`): embedding, output layer.
bool may_be_decoupled(std::string_view name);

}  // namespace reshard::megatron
