#pragma once

#include <cstddef>

#include "core/formats/checkpoint.hpp"
#include "core/plan/catalog.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/publication/work_account.hpp"

namespace reshard {

/// Compares the zip records of a source of which every byte was read once with the CRC-32 that
/// their archives have recorded. Returns how many have one and were compared. An Error of kind
/// source names files, records and the tensors in them. Collective. `account` is gathered.
std::size_t check_source_records(Checkpoint const& source, Catalog const& catalog,
                                 WorkAccount const& account, Comm const& comm);

}  // namespace reshard
