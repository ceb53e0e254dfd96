#pragma once

#include <string>
#include <vector>

#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// The words of a map, without any model.
struct MapWords {
  std::vector<std::string> tensors;  ///< logical tensors that its entries name, sorted
  std::size_t names = 0;             ///< stored names, as patterns
  std::size_t entries = 0;
  std::vector<std::string>
      facts;  ///< keys of config.json (or args) that its expressions ask for, sorted
};

/// Checks what needs no model: layout expressions, views, names and macros parse; tensors are
/// declared in the map or in `core`; axes and sets are defined in one of them. The first mistake is
/// an Error of kind usage with file and line. `core` may be the map itself.
MapWords check_map_syntax(MapFile const& map, MapFile const& core);

}  // namespace reshard
