#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tables/integers.hpp"
#include "core/layout/axis.hpp"
#include "core/layout/mesh.hpp"

namespace reshard {

/// The effect of one mesh axis on a tensor, in the words of torch.distributed.tensor.
struct Placement {
  enum class Kind { replicate, shard, strided_shard };
  Kind kind = Kind::replicate;
  int dim = 0;             ///< shard, strided_shard
  Index split_factor = 1;  ///< strided_shard: parts that axes further right cut first
  friend bool operator==(Placement const&, Placement const&) = default;
};

/// "R", "S(0)" or "S0", "_S(0, 2)" and torch's own spellings "Replicate()", "Shard(dim=0)",
/// "_StridedShard(dim=0, sf=2)", separated by spaces. Errors of kind usage show the text.
std::vector<Placement> parse_placements(std::string_view text);
/// "dp=4 tp=2": name and size of every mesh axis, outermost first. Errors of kind usage show the
/// text.
Mesh parse_mesh(std::string_view text);

/// Rows [begin, end) of every dimension.
struct TensorBox {
  std::vector<Index> begin;
  std::vector<Index> end;
  friend bool operator==(TensorBox const&, TensorBox const&) = default;
};

/// The boxes of a tensor on the ranks of a mesh, without empty ones and each once (replicas), in
/// row-major order of the mesh. Axes act from left to right; Shard(d) cuts the current part along d
/// into parts of ceil(size / n) rows, of which late ones are short or empty. A strided shard cuts
/// after the `split_factor` parts of the axes to its right; a rank whose rows are then not one run
/// has several boxes. A tensor without elements has one box. Errors of kind usage: more placements
/// than mesh axes or fewer, a dim that the tensor lacks.
std::vector<TensorBox> placed_boxes(std::span<Index const> shape, Mesh const& mesh,
                                    std::span<Placement const> placements);

/// The rows of each dimension in one place of a mesh, in stored order: its part of the tensor is
/// their product. `sizes` are those of the mesh axes, `at` the place's coordinates. Axes act as in
/// placed_boxes(), but if the factors of strided shards determine the order of the cuts (dp after
/// tp: each factor is the product of the sizes of axes further right that cut first), they are cut
/// in that order, as torch's fully_shard does: the two differ where parts are uneven. Source: torch
/// 2.13, torch/distributed/tensor/_dtensor_spec.py (_maybe_convert_StridedShard_to_shard_order) and
/// torch/distributed/fsdp/_fully_shard/_fsdp_param.py. Errors as placed_boxes(). Pre: at[i] <
/// sizes[i].
std::vector<Share> placed_rows(std::span<Index const> shape, std::span<Index const> sizes,
                               std::span<Index const> at, std::span<Placement const> placements);

}  // namespace reshard
