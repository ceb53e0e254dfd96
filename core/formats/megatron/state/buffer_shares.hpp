#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/megatron/state/flat_buffer.hpp"
#include "core/mapping/sides/side.hpp"

namespace reshard::megatron {

/// A parameter of a rank.
struct RankParameter {
  std::uint32_t name = 0;  ///< number among the stored names of its pipeline chunk
  Index elements = 0;
};

/// The parameters of one flat buffer of a rank, in order of registration.
struct BufferShare {
  std::size_t chunk = 0;  ///< pipeline chunk, in model order
  std::string weights;    ///< dtype of its parameters, "BF16"; "" if unknown
  std::vector<RankParameter> parameters;
};

/// The inputs for the flat buffers of a save.
struct BufferModel {
  Model const& model;
  MapFile const& map;  ///< of Megatron: registration order, buffers
  Side const& side;    ///< local, of the save's mesh
  Mesh const& mesh;
  std::vector<PipelineChunk> const& chunks;
  /// The dtype in which a side stores a weight; "" if the weight does not exist.
  std::function<std::string(StoredName const&)> dtype;
  bool experts_apart = false;  ///< experts have an optimizer of their own
  std::function<bool(StoredName const&)> trained = nullptr;  ///< whether an optimizer has it;
                                                             ///< empty: all
};

/// The parameters of each buffer, with their order.
class BufferShares {
 public:
  /// The objects in `model` must outlive this object.
  explicit BufferShares(BufferModel model);

  /// The buffers of one rank's optimizer, in order: those of each of its pipeline chunks, one for
  /// each dtype in order of its first parameter.
  std::vector<BufferShare> of(MeshPlace const& place, int pipeline_rank, bool experts);
  /// The parameters of one rank's optimizer in order of registration, a share for each chunk.
  std::vector<BufferShare> parameters(MeshPlace const& place, int pipeline_rank, bool experts);
  /// The argument of flat_layout().
  std::vector<FlatParameter> flat(BufferShare const& share) const;
  /// The number of parameter elements of a rank of a pipeline stage, over all chunks, equal for all
  /// ranks.
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

/// Whether Megatron lets a parameter decay: vectors and biases are exempt, except for the norms of
/// q and k with args.apply_wd_to_qk_layernorm.
bool decays(std::string_view name, std::span<Index const> shape, Json const& args);
/// Whether a parameter may have its own learning rate (`decoupled_lr`): embedding, output layer.
bool may_be_decoupled(std::string_view name);

}  // namespace reshard::megatron
