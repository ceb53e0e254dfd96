#pragma once

#include <functional>
#include <string_view>

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// Makes the model that config.json describes by the map of its family. A config may list layers
/// for multi-token prediction that were never trained, or were not saved: the checkpoint decides,
/// and a warning says so. `names`: the map of the stored names where it is not the family's, else
/// nullptr; `has` answers for stored names.
void make_family_model(Checkpoint const& source, TargetRequest const& request, MapFile const* names,
                       std::function<bool(std::string_view)> const& has, SourceModel& read);

}  // namespace reshard
