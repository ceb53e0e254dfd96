#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/layout_expr.hpp"

namespace reshard {

/// Which of the two matrices of a low-rank adapter, W + scale * B * A: A is rank x in, B is
/// out x rank.
enum class AdapterMatrix { a, b };

/// How a matrix lies beside its weight.
struct AdapterShape {
  AdapterMatrix matrix = AdapterMatrix::a;
  std::string rank;                 ///< the axis of ranks
  std::string suffix;               ///< behind the weight's tensor: ".lora_a.r8"
  std::vector<std::string> front;   ///< axes as leading dimensions of their own, one each
  std::vector<std::string> inside;  ///< axes beside the rank: A is (axes rank) x in, B is
                                    ///< out x (rank axes), as peft packs experts
};

/// The dimensions of a weight: which hold what it maps from, and which what it maps to.
struct LinearDims {
  std::size_t out = 0;
  std::size_t in = 1;
};

/// The axes in a dimension, those of all alternatives, each once.
std::vector<std::string> axes_in(LayoutExpr::Factor const& dim);

/// The layouts of a matrix: one where the dimension that it shares with its weight tells the
/// tensors of the weight apart, else one for each tensor, over the same bytes.
///
///   attn: (group (q: head dim | k: dim | v: dim)) hidden
///     b: attn: (group (q.lora_b.r8: head dim | k.lora_b.r8: dim | v.lora_b.r8: dim)) rank8
///     a: attn.q.lora_a.r8: rank8 hidden, attn.k.lora_a.r8: rank8 hidden, attn.v.lora_a.r8: …
std::vector<LayoutExpr> adapter_layouts(LayoutExpr const& weight, LinearDims dims,
                                        AdapterShape const& shape);

/// The expression with those alternatives alone that lead to a tensor.
LayoutExpr only_tensor(LayoutExpr expr, std::string_view tensor);

/// The rows of a dimension as ranks have them one after the other, where several alternatives begin
/// with an axis that is cut into `ranks` equal parts:
///
///   (gate: inter | up: inter), inter 8, 2 ranks  ->  (inter/4 (gate: inter%4 | up: inter%4))
///
/// False, and the dimension is as it was, where one does not.
bool put_ranks_outside(LayoutExpr::Factor& dim, std::string_view axis, long long size,
                       long long ranks);

/// A digit that is a whole axis, as programs store it that take the halves of each rank's rows for
/// two matrices: first halves of all ranks, then second halves.
///
///   inter, inter 8, 2 ranks  ->  (inter%4/2 inter/4 inter%2)
///
/// False for a dimension that is not such a digit.
bool put_halves_outside(LayoutExpr::Factor& dim, std::string_view axis, long long size,
                        long long ranks);

}  // namespace reshard
