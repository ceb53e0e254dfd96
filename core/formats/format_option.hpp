#pragma once

#include <cstdint>
#include <vector>

#include "core/base/key_table.hpp"
#include "core/formats/format_id.hpp"

namespace reshard {

/// Far above any cluster, far below where a product of two sizes leaves the range of an int.
inline constexpr std::int64_t most_ranks = 32768;

/// A key of [target] that some formats alone read. Each declares its own beside the code that reads
/// them: the member of its struct of options, and the row.
template <class Options>
struct FormatOption {
  std::vector<FormatId> formats;  ///< empty: every one
  keys::Row<Options> row;
};

template <class Options>
using FormatOptions = std::vector<FormatOption<Options>>;

}  // namespace reshard
