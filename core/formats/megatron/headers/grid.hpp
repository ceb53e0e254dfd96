#pragma once

#include <vector>

#include "core/formats/megatron/headers/classify.hpp"

namespace reshard::megatron {

/// Compares the directories found with those that the sizes require: fills missing, extra and
/// without_file, and adds a mismatch for every slice of the model that no file contains. `experts`:
/// whether routed experts must be covered too. Pre: sizes and places are set.
void check_grid(Classification& result, std::vector<ShardFacts> const& shards, NameStyle style,
                bool experts);

}  // namespace reshard::megatron
