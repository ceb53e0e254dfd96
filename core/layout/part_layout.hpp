#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/layout_expr.hpp"

namespace reshard {

/// The dimension of a part of a quantised weight for one of the weight's stored dimensions.
struct PartDim {
  enum class Kind {
    blocks,  ///< one element for every `block` of them; the last block may be shorter
    split,   ///< two dimensions: blocks of `block`, and in each of them one element for every
             ///< `inner`; where both are equal, the second has extent 1
    words,   ///< one dimension: each block of `block` elements is `inner` words
    all,     ///< no dimension: one value for the complete dimension
    one,     ///< a dimension of extent 1: one value for the complete dimension
  };
  Kind kind = Kind::blocks;
  Index block = 1;
  Index inner = 1;
  friend bool operator==(PartDim const&, PartDim const&) = default;
};

/// The layout of a part of a quantised weight, made from the weight's: its last dimensions by
/// `dims`, those before them unchanged, and the axis `vector` after all others ("" for none). The
/// logical tensors' names get `suffix`. If a dimension with several tensors is reduced, the tensors
/// stay, one element each:
///
///   ffn: (gate: inter | up: inter) hidden   with blocks 128, 128:
///   ffn: (gate.s: inter/128 | up.s: inter/128) hidden/128
///
///   attn: (group (q: head dim | k: dim)) h  with all, all:     attn: (q.s: | k.s:)
///
/// Words of a block are an axis of their own, vector_axis(inner), whatever the axes of the weight
/// are:
///
///   o: hidden inter   with blocks 1, words 32 of 3:    o.s: hidden (inter/32 numbers3)
///
/// In a product the last factor is divided; if its extent divides the block it is removed, and the
/// rest is divided by the quotient. A tensor that ends inside a block, with another after it in the
/// dimension, is an Error of kind usage that names block, axis and extent. `size_of` returns the
/// size of an axis or the value of a named count.
LayoutExpr part_layout(LayoutExpr const& weight, std::span<PartDim const> dims,
                       std::string_view vector, std::string_view suffix,
                       std::function<Index(std::string const&)> const& size_of);

/// An axis of so many numbers that no axis of the weight counts: "numbers3"; "" for 0.
std::string vector_axis(Index count);

/// The layouts of a part that all tensors of a weight have together, over the same bytes, one for
/// each tensor. If different rows of the part belong to different tensors, there is one layout,
/// part_layout().
///
///   attn: (group (q: head dim | k: dim)) h   all, one    attn.q.s: 1   and   attn.k.s: 1
///   attn: (group (q: head dim | k: dim)) h   all, 1      attn.q.s: h   and   attn.k.s: h
std::vector<LayoutExpr> shared_part_layouts(
    LayoutExpr const& weight, std::span<PartDim const> dims, std::string_view vector,
    std::string_view suffix, std::function<Index(std::string const&)> const& size_of);

}  // namespace reshard
