#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/padding_rows.hpp"
#include "stages/verify/replica_check.hpp"

namespace reshard {

/// What lies in rows behind the vocabulary that a job leaves out.
struct RowsBehind {
  std::vector<std::string> warnings;  ///< some rows have values, others are zero: new tokens
  std::vector<std::string> notes;     ///< all have values, as in models that Megatron trained
};

/// Reads the rows, in slices of a few MiB; every rank takes a share. Collective, and the same on
/// every rank.
RowsBehind look_behind_vocabulary(Model const& model, std::span<PaddingRows const> rows,
                                  CatalogReader const& read, Comm const& comm);

}  // namespace reshard
