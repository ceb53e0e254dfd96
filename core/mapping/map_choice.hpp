#pragma once

#include <optional>

#include "core/mapping/map_file.hpp"

namespace reshard {

/// The maps of a job: Megatron-Core's (for a Megatron side) and the family's (for a Hugging Face
/// side or when named).
struct MapChoice {
  MapFile core;
  std::optional<MapFile> family;
};

}  // namespace reshard
