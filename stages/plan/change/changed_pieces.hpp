#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/formats/source_model.hpp"
#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// The axis of a model by its name; nullopt if it has none.
inline std::optional<AxisId> axis_of(Model const& model, std::string_view name) {
  int const found = model.axes().find(name);
  return found < 0 ? std::nullopt : std::optional(static_cast<AxisId>(found));
}

/// Calls `use` with every catalogue of a source that is read.
template <class Use>
void each_catalog(SourceModel& read, Use const& use) {
  use(read.stored.catalog);
  if (read.stored.weights) use(*read.stored.weights);
}

/// Calls `use` with every model of a source that is read.
template <class Use>
void each_model(SourceModel& read, Use const& use) {
  use(*read.model);
  if (read.unquantised) use(*read.unquantised);
}

/// Of the pieces of every tensor with this axis, the parts with the indices `kept`, which become
/// 0, 1, 2, … of an axis of so many. An Error of kind usage where stored tensors count the axis in
/// blocks. `axis` still has its old size in `model`.
void select_indices(Model const& model, Catalog& catalog, AxisId axis,
                    std::vector<Index> const& kept);

/// The same for an axis `of` that each index of the axis `by` has its own list for.
void select_indices_by(Model const& model, Catalog& catalog, AxisId by, AxisId of,
                       std::vector<std::vector<Index>> const& kept, Index count);

/// Takes the indices before `first` away, and leaves the others their numbers.
void select_from(Model const& model, Catalog& catalog, AxisId axis, Index first);

/// Gives the axis a size beyond its old one: the first indices keep their pieces.
void widen(Model const& model, Catalog& catalog, AxisId axis, Index size);

}  // namespace reshard
