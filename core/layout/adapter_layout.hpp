#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/layout_expr.hpp"

namespace reshard {

/// The two matrices of a low-rank adapter, W + scale * B * A: A is rank x in, B is out x rank.
enum class AdapterMatrix { a, b };

/// The shape of an adapter matrix relative to its weight.
struct AdapterShape {
  AdapterMatrix matrix = AdapterMatrix::a;
  std::string rank;                 ///< the axis of ranks
  std::string suffix;               ///< appended to the name of the weight's tensor: ".lora_a.r8"
  std::vector<std::string> front;   ///< axes as leading dimensions of their own, one each
  std::vector<std::string> inside;  ///< axes next to the rank: A is (axes rank) x in, B is out x
                                    ///< (rank axes), as peft packs experts
};

/// The input and output dimensions of a linear weight.
struct LinearDims {
  std::size_t out = 0;
  std::size_t in = 1;
};

/// The axes of a dimension, over all alternatives, each once.
std::vector<std::string> axes_in(LayoutExpr::Factor const& dim);

/// The layouts of a matrix: one if the dimension shared with its weight distinguishes the tensors
/// of the weight, else one for each tensor, over the same bytes.
///
///   attn: (group (q: head dim | k: dim | v: dim)) hidden
///     b: attn: (group (q.lora_b.r8: head dim | k.lora_b.r8: dim | v.lora_b.r8: dim)) rank8
///     a: attn.q.lora_a.r8: rank8 hidden, attn.k.lora_a.r8: rank8 hidden, attn.v.lora_a.r8: …
std::vector<LayoutExpr> adapter_layouts(LayoutExpr const& weight, LinearDims dims,
                                        AdapterShape const& shape);

/// The expression reduced to the alternatives that lead to a tensor.
LayoutExpr only_tensor(LayoutExpr expr, std::string_view tensor);

/// Reorders a dimension whose alternatives begin with an axis that is cut into `ranks` equal parts:
/// the rows of rank 0 first, then those of rank 1, and so on.
///
///   (gate: inter | up: inter), inter 8, 2 ranks  ->  (inter/4 (gate: inter%4 | up: inter%4))
///
/// False, without a change, if an alternative does not begin with the axis.
bool put_ranks_outside(LayoutExpr::Factor& dim, std::string_view axis, long long size,
                       long long ranks);

/// Reorders a digit that is a complete axis, for programs that take the halves of each rank's rows
/// for two matrices: first halves of all ranks, then second halves.
///
///   inter, inter 8, 2 ranks  ->  (inter%4/2 inter/4 inter%2)
///
/// False for a dimension that is not such a digit.
bool put_halves_outside(LayoutExpr::Factor& dim, std::string_view axis, long long size,
                        long long ranks);

}  // namespace reshard
