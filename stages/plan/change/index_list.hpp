#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard {

/// "0-3, 7" as the indices 0, 1, 2, 3, 7. An Error of kind usage under `key` ("[target]
/// keep_layers") where the text is no such list, an index is not below `count` of `things`
/// ("layers"), or the indices do not ascend.
std::vector<Index> index_list(std::string_view text, Index count, std::string const& key,
                              std::string_view things);

/// The experts that are kept of each of `layers` layers: "0-63" for all of them, or "0-3: 0-7; 4:
/// 8-15" by layer. `has_experts` says which layers have any; the others keep none. All keep as
/// many, else an Error of kind usage.
std::vector<std::vector<Index>> kept_experts(std::string_view text, Index experts,
                                             std::vector<bool> const& has_experts,
                                             std::string const& key);

}  // namespace reshard
