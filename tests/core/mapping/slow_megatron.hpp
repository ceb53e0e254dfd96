#pragma once

#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/layout/axis.hpp"

namespace reshard::test {

/// The args of a small model with fused attention, gated experts, a shared expert and one
/// prediction layer: every size small, few equal.
Json slow_args();

/// What an element of a stored tensor of Megatron's global formats is, from the name alone, one at
/// a time: "experts.up expert=1 hidden=2 …" (axes in order of their names), or "" for padding. A
/// second description of what mcore.toml says, for the model of slow_args().
std::string slow_element(std::string name, std::vector<Index> at);

/// How slow_element() writes an element: axes of one index are left out.
std::string element_text(std::string const& tensor,
                         std::vector<std::pair<std::string, Index>> indices);

}  // namespace reshard::test
