#pragma once

#include <span>
#include <string>

#include "core/base/text/json.hpp"
#include "stages/verify/surveys/compare_stats.hpp"

namespace reshard {

/// {"0": 12, "1e-5": 3}: how many finite elements differ by which power of ten, all of these
/// statistics together; classes without elements are left out.
Json histogram_json(std::span<TensorStats const> stats);

/// The same as a table with a line for each class from the first to the last that has elements; ""
/// where nothing has values.
std::string histogram_text(std::span<TensorStats const> stats);

}  // namespace reshard
