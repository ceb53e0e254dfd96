#pragma once

#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// Summands of stored values beside logical ones on both sides of a job, by logical tensor
/// (Side::adds); empty: none.
struct StoredAdds {
  std::vector<int> source;
  std::vector<int> target;
};

/// Where the target needs values that the source does not have (another dtype, another
/// zero of a norm), the source's stored tensors become computed ones. A dtype that cannot hold the
/// other's values is an Error of kind usage; a single value that it cannot hold is one when it is
/// read. Values of the tensors in `cast` are rounded; so is what their stored values have over
/// logical ones.
void change_values(Model const& model, Catalog& source, Catalog const& target,
                   StoredAdds const& adds, std::vector<bool> const& cast = {});

/// Rounds the values of one tensor of a catalogue, increased by `add`, to a dtype.
void change_values_of(Model const& model, Catalog& source, TensorId tensor, DType dtype, int add);

}  // namespace reshard
