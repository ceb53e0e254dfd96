#pragma once

#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// What stored values have over logical ones on both sides of a job, by logical tensor
/// (Side::adds); empty: nothing.
struct StoredAdds {
  std::vector<int> source;
  std::vector<int> target;
};

/// Where the target needs values that the source does not have (another dtype, another
/// zero of a norm), the source's stored tensors become computed ones. A dtype that cannot hold the
/// other's values is an Error of kind usage; a single value that it cannot hold is one when it is
/// read.
void change_values(Model const& model, Catalog& source, Catalog const& target,
                   StoredAdds const& adds);

}  // namespace reshard
