#pragma once

#include <cstdint>
#include <vector>

#include "core/base/text/key_table.hpp"
#include "core/formats/format_id.hpp"

namespace reshard {

/// Far above any cluster, and small enough that a product of two sizes fits in an int.
inline constexpr std::int64_t most_ranks = 32768;

/// A key of [target] that only some formats read. Each declares its own next to the code that reads
/// them: the member of its struct of options, and the row.
template <class Options>
struct FormatOption {
  std::vector<FormatId> formats;  ///< empty: every one
  keys::Row<Options> row;
};

template <class Options>
using FormatOptions = std::vector<FormatOption<Options>>;

}  // namespace reshard
