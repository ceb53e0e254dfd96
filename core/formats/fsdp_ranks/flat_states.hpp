#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/formats/fsdp_ranks/rank_table.hpp"

namespace reshard::fsdp_ranks {

// FSDP1 keeps the weights of a wrapped module end to end in one vector, cuts it into equal parts
// for the ranks, and the optimizer's state has that form. Source: torch 2.13,
// torch/distributed/fsdp/_flat_param.py (_init_flat_param_and_metadata, _get_shard,
// _use_sharded_views). No file contains the weights of a vector: it is assumed that FSDP wrapped
// the blocks of the model ("model.layers.3."), as trainers' policies do, and the rest in the module
// around them, and the sizes of all vectors are compared with that.

/// Elements [begin, end) of a weight: those of a rank's vector from `at` on.
struct FlatPiece {
  std::size_t rank = 0;
  Index begin = 0;
  Index end = 0;
  Index at = 0;
};

/// A weight whose states are parts of vectors.
struct FlatWeight {
  RankTensor const* weight = nullptr;
  std::string key;  ///< of the states
  std::vector<FlatPiece> pieces;
};

/// Whether the state is in vectors that have not the shape of a weight.
bool has_flat_states(RankFiles const& optimizer, std::span<RankTensor const> weights);

/// The places of the states of all weights; nullopt if the sizes of the vectors differ from the
/// assumption.
std::optional<std::vector<FlatWeight>> flat_weights(RankFiles const& optimizer,
                                                    RankFiles const& model,
                                                    std::span<RankTensor const> weights);

/// Adds the states of all weights, such as optimizer.state.NAME.exp_avg, and steps.
void add_flat_states(std::span<FlatWeight const> weights, RankFiles const& optimizer,
                     Checkpoint& checkpoint);

}  // namespace reshard::fsdp_ranks
