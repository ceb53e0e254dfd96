#pragma once

#include <cstdint>
#include <string>

#include "core/plan/equal/state_checks.hpp"
#include "stages/verify/replica_check.hpp"

namespace reshard {

/// The differences between a tensor's rounded master weights and its weights.
struct MasterFindings {
  std::uint64_t elements = 0;
  std::uint64_t differing = 0;
  std::vector<Index> place;  ///< of the first: indices along the axes of the weight
  std::string first;  ///< "layer 3, hidden 17: master 1.5 in 'a' of FILE, weight 1.25 in 'b' of
                      ///< FILE"; "" for none
};

/// Reads one tensor's masters and weights and compares them, element by element.
MasterFindings compare_masters(Model const& model, Catalog const& source, StateCheck const& check,
                               CatalogReader const& read);

}  // namespace reshard
