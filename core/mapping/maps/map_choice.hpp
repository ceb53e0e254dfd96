#pragma once

#include <optional>
#include <string_view>

#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// The maps of a job: Megatron-Core's (for a Megatron side) and the family's (for a Hugging Face
/// side or when named).
struct MapChoice {
  MapFile core;
  std::optional<MapFile> family;

  /// Whether a logical tensor of this name stays F32 beside weights of BF16, or of F16
  /// (full_precision, f32_beside_f16).
  bool keeps_f32(std::string_view tensor, bool beside_f16) const;
};

}  // namespace reshard
