#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/mapping/quant_finder.hpp"
#include "core/plan/views/source_view.hpp"

namespace reshard {

/// The BF16 values of a quantised weight whose parts were found: the weight, or where
/// is_stored_transposed() the matrix of its columns. `shape` is the weight's own; `find` gives the
/// parts by stored name. A scheme whose values cannot be computed, or a weight of several tensors
/// that have one scale each, is an Error of kind usage.
SourceView dequantised(QuantScheme const& scheme, QuantMatch const& match, std::string const& name,
                       std::vector<Index> const& shape,
                       std::function<std::optional<StoredPlace>(std::string const&)> const& find);

}  // namespace reshard
