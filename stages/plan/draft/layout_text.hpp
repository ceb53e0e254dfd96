#pragma once

#include <optional>
#include <span>
#include <string>

namespace reshard {

/// The layout expression of several weights in one tensor, row by row: "ffn.gate: inter hidden" and
/// "ffn.up: inter hidden" give "ffn: (gate: inter | up: inter) hidden". Nothing where they differ
/// in more than their rows, or their logical tensors have no common word in front.
std::optional<std::string> joined_layout(std::span<std::string const> layouts);

}  // namespace reshard
