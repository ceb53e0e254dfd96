#pragma once

#include <optional>

#include "core/base/tables/integers.hpp"
#include "core/base/text/json.hpp"

namespace reshard::megatron {

/// The number to whose multiple Megatron pads a vocabulary: make_vocab_size_divisible_by of args
/// (128 if they do not state it) times the tensor-parallel ranks. An Error of kind source if the
/// product does not fit in 64 bits.
Index vocab_multiple(Json const& args, Index ranks);

/// The smallest multiple that is not below the size. An Error of kind source beyond Index.
Index padded_rows(Index vocab, Index multiple);

/// The rows of an embedding in a layout that pads to a multiple of `to`, where `rows` rows were
/// padded to a multiple of `from` and the size of the vocabulary is not known: the padded size of
/// every vocabulary with these rows. nullopt if two of them differ, or if `rows` is not a multiple
/// of `from`.
///
///   50432 rows of 256: 50177 to 50432 tokens. In 512: 50688 for all. In 128: 50304 or 50432.
std::optional<Index> repadded_rows(Index rows, Index from, Index to);

}  // namespace reshard::megatron
