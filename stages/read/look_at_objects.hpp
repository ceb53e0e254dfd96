#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// Checks all objects of a source, each rank a share, and distributes the results to every rank.
/// Collective. Damage is a result, too: it is refused only if the object is to be copied.
void look_at_objects(Checkpoint& source, Comm const& comm);

}  // namespace reshard
