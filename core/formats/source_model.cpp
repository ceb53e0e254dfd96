#include "core/formats/source_model.hpp"

namespace reshard {

Model SourceModel::as_it_is() const {
  if (!unquantised) return *model;
  Model result = *unquantised;
  for (std::size_t t = 0; t < result.tensors().size(); ++t) {
    auto const tensor = TensorId(t);
    result.set_exists(tensor, model->exists(tensor) || model->quantised(tensor));
  }
  return result;
}

}  // namespace reshard
