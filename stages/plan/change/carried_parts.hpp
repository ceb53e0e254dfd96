#pragma once

#include <string>

#include "core/formats/model_changes.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// Tensors that no map describes are carried as they are (model.unmapped = "keep"). An Error of
/// kind usage where one of them belongs to layers, experts or tokens that change. `vocab`: rows of
/// the source; `keys`: the job's keys that change the model.
void check_carried_parts(SourceModel const& read, ModelChanges const& changes, Index vocab,
                         std::string const& keys);

}  // namespace reshard
