#pragma once

#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// The map without what `false` takes away: stored names without entries, arguments, members and
/// defaults without an expression. Of a map that has taken in all its bases.
MapFile without_removed(MapFile map);

}  // namespace reshard
