#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/equal/replicas.hpp"

namespace reshard {

/// Proves that the source contains every element of a logical tensor exactly once, not counting
/// replicas. Errors of kind source.
void prove_whole(Model const& model, LogicalTensor const& tensor, Distinct const& distinct,
                 Catalog const& source);

/// prove_whole() and element_bytes() of the tensors with numbers `first`, `first` + `step`, … that
/// exist and have elements. Errors of kind source.
void prove_source(Model const& model, Catalog const& source, std::size_t first = 0,
                  std::size_t step = 1);

/// The size of an element of these pieces, in bytes. Errors of kind source: several dtypes, in
/// replicas and copies too, or one with elements smaller than a byte.
std::uint64_t element_bytes(Distinct const& distinct, Catalog const& source,
                            std::string_view tensor);

}  // namespace reshard
