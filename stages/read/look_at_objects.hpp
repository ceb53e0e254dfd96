#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// Looks at all objects of a source, each rank at a share, and gives the results to every rank.
/// Collective. Damage is a result, too: whether it matters is decided when the object is to be
/// carried.
void look_at_objects(Checkpoint& source, Comm const& comm);

}  // namespace reshard
