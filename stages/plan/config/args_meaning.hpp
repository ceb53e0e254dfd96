#pragma once

#include <string>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// An Error of kind source where an argument of `layout_args` says that rows on disk have another
/// order than the maps describe. `place` is the checkpoint.
void refuse_other_rows(MapFile const& core, Json const& args, std::string const& place);

/// A sentence about arguments that no list of args.toml has, that say something, and whose names
/// are like those of a model; "" for none. `family` makes arguments of its own.
std::string unknown_args_warning(MapFile const& core, MapFile const* family, Json const& args);

}  // namespace reshard
