#pragma once

#include <vector>

#include "pipeline/verify/compare/compare_sides.hpp"
#include "pipeline/verify/compare/reading_choices.hpp"

namespace reshard {

/// Makes the catalogues of both opened sides: by stored names where these are the same, else by
/// maps, with the first of the choices that can be read; notes in `sides` which one it was, and
/// which values are compared. Errors: that of the first choice, where none can be read.
void open_catalogues(CompareRequest const& request, std::vector<ReadingChoice> const& choices,
                     ComparedSides& sides);

}  // namespace reshard
