#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/padding_rows.hpp"
#include "stages/verify/replica_check.hpp"

namespace reshard {

/// The content of rows after the vocabulary, which a job leaves out.
struct RowsBehind {
  std::vector<std::string> warnings;  ///< some rows are nonzero, others zero: new tokens
  std::vector<std::string> notes;     ///< all rows are nonzero, as in models trained by Megatron
};

/// Reads the rows, in slices of a few MiB; every rank takes a share. Collective, and the same on
/// every rank.
RowsBehind look_behind_vocabulary(Model const& model, std::span<PaddingRows const> rows,
                                  CatalogReader const& read, Comm const& comm);

}  // namespace reshard
