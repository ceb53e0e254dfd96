#pragma once

#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "stages/plan/config/config_comparison.hpp"

namespace reshard {

/// Differences in `__metadata__` between the headers of two Hugging Face folders, "format" aside.
struct HeaderMembers {
  /// Members that describe tensors, as torchao's do, without which a loader cannot make these: keys
  /// are "__metadata__.NAME".
  std::vector<ConfigDifference> differences;
  std::vector<std::string> others;  ///< names of members that say something else
};

/// Members of all files count together, and so do the elements of those that are JSON lists: how
/// tensors are shared out among files is no difference. Nothing for other formats. Looks through
/// Sight.
HeaderMembers compare_header_members(Checkpoint const& a, Checkpoint const& b);

}  // namespace reshard
