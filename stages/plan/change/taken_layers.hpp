#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/mapping/maps/map_library.hpp"

namespace reshard {

/// Puts the layers for multi-token prediction of another Hugging Face folder in the place of those
/// of the source, which may have none: its files become files of the source, and the source's
/// config.json counts these layers. Errors of kind source: another family or number of layers, a
/// folder without such layers, weights that only one of the two has quantised.
void take_prediction_layers(Checkpoint& source, Checkpoint const& from, MapLibrary const& library);

}  // namespace reshard
