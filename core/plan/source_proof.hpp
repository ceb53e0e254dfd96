#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/replicas.hpp"

namespace reshard {

/// Proves that the source holds every element of a logical tensor exactly once, not counting
/// replicas. Errors of kind source.
void prove_whole(Model const& model, LogicalTensor const& tensor, Distinct const& distinct,
                 Catalog const& source);

/// The same of every tensor of the model that exists and has elements, and element_bytes() of it:
/// of numbers `first`, `first` + `step`, … alone. Errors of kind source.
void prove_source(Model const& model, Catalog const& source, std::size_t first = 0,
                  std::size_t step = 1);

/// Bytes of an element of these pieces. Errors of kind source: several dtypes, in replicas and
/// copies too, or one with elements smaller than a byte.
std::uint64_t element_bytes(Distinct const& distinct, Catalog const& source,
                            std::string_view tensor);

}  // namespace reshard
