#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/formats/megatron/state/buffer_shares.hpp"
#include "core/formats/megatron/state/flat_rules.hpp"
#include "core/formats/megatron/state/rank_settings.hpp"
#include "core/formats/targets/target_parts.hpp"

namespace reshard::megatron {

/// A tensor of optimizer state in a file to be written: the same in all shards of one kind.
struct StateTensor {
  /// The part of one parameter.
  struct Part {
    StoredName const* name = nullptr;      ///< of StateTarget, which owns it
    PipelineChunk const* chunk = nullptr;  ///< the parameter's
    SlotId slot = SlotId::weight;
    Index offset = 0;  ///< of its first element, in elements of the tensor
  };
  std::string name;  ///< for messages
  DType dtype = DType::f32;
  std::vector<Part> parts;
  std::string payload;  ///< its bytes if they are known; there are then no parts
};

/// A distrib_optim.pt: tensor i of the document is tensors[i].
struct StateFile {
  pickle::Document document;
  std::vector<StateTensor> tensors;
};

/// The inputs of StateTarget. Borrows everything.
struct StateModel {
  TargetParts const& parts;
  MapFile const& map;  ///< of Megatron
  std::vector<PipelineChunk> const& chunks;
  Json const& args;  ///< those of the target, for the ends of buckets
  OptimizerSettings const& settings;
  bool distributed = false;  ///< the target's optimizer is Megatron's distributed one
};

/// Optimizer state in the files of single ranks, in Megatron's legacy format ("torch"): inside
/// model_optim_rng.pt, or flat buffers in distrib_optim.pt (docs/formats/megatron.md, 4.1).
class StateTarget {
 public:
  explicit StateTarget(StateModel const& model);
  StateTarget(StateTarget const&) = delete;
  StateTarget& operator=(StateTarget const&) = delete;

  /// By optimizer: whether distributed_file() has its flat buffers for a place; all false: there is
  /// no such file.
  std::vector<bool> held(ShardPlace const& place) const;
  /// Adds "optimizer" to a model_optim_rng.pt, and its tensors to `tensors`. They depend only on
  /// the pipeline rank and on the shapes of the place. Errors of kind source: parameters of no
  /// group, missing state.
  void add_to_shard(pickle::Document& shard, ShardPlace const& place,
                    std::vector<StateTensor>& tensors);
  /// The distrib_optim.pt next to it; nullopt if another folder has that state. It depends only on
  /// the pipeline rank, on the shapes of the place, and on held(). Errors of kind source: missing
  /// state, state that is not F32. Pre: StateModel::distributed.
  std::optional<StateFile> distributed_file(ShardPlace const& place);

  /// Whether offsets in the files of distributed_file() depend on the ends of buckets.
  bool depends_on_buckets() const { return depends_on_buckets_; }
  /// Names, in any rank's file, of parameters without any state: they were frozen.
  std::set<std::string> const& frozen() const { return frozen_; }
  /// F32 weights of which distrib_optim.pt has a copy as master weights.
  std::set<TensorId> const& own_masters() const { return own_masters_; }

 private:
  struct Optimizer;
  /// A parameter of a rank.
  struct Member {
    StoredName const* name = nullptr;
    SidePlace place;
  };

  bool holds(ShardPlace const& place, std::size_t chain) const;
  FlatLayout layout(BufferShare const& share, int stage);
  pickle::NodeId add_buffers(StateFile& file, MeshPlace const& at, int stage, std::size_t chain);
  StateTensor flat_state(BufferShare const& share, FlatLayout const& layout,
                         std::optional<SlotId> slot);
  std::vector<std::vector<Member>> members(pickle::Document const& document,
                                           std::vector<pickle::NodeId> const& groups,
                                           MeshPlace const& at, int stage, std::size_t chain);
  void add_groups(Optimizer& to, MeshPlace const& at, int stage, std::size_t chain);
  void add_moments(Optimizer& to, pickle::NodeId state, Index number, Member const& member) const;
  void refuse_copy(StoredName const& name) const;
  pickle::NodeId add_master(Optimizer& to, Member const& member) const;
  pickle::NodeId add_state(Optimizer& to, Member const& member, SlotId slot) const;
  void complete_steps(pickle::Document& document, pickle::NodeId groups) const;
  bool has(StoredName const& name, SlotId slot) const;
  bool has_any(StoredName const& name) const;
  bool is_narrow(StoredName const& name) const;
  std::string described(StoredName const& name, SlotId slot) const;

  StateModel model_;
  MeshSizes sizes_;
  BufferShares shares_;
  std::optional<SlotId> masters_;
  std::vector<SlotId> moments_;  ///< all other slots of state
  bool depends_on_buckets_ = false;
  std::set<std::string> frozen_;
  std::set<TensorId> own_masters_;
};

}  // namespace reshard::megatron
