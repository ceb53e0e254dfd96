#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/verify/checkpoint_query.hpp"
#include "stages/write/target_place.hpp"

namespace reshard {

struct ExtractQuery : CheckpointQuery {
  std::vector<std::string> patterns = {};  ///< of logical names, at least one (choose_tensors)
  std::string at = {};                     ///< "layer=3,expert=5": one index of these axes; "": all
  std::filesystem::path output = {};       ///< a safetensors file
  ExistingTarget existing = ExistingTarget::refuse;
  std::uint64_t memory_bytes = std::uint64_t{256} << 20;  ///< of staging
};

struct ExtractReport {
  Json json;
  std::string text;
  std::vector<std::string> notes;  ///< what else there is to know, for stderr
};

/// `reshard extract PATH PATTERN -o FILE`: writes logical tensors as row-major arrays, axes in
/// canonical order, values as they are stored. Each element is read once. The file's `__metadata__`
/// has the axes, and has the name only when it is complete. Collective. Errors: usage (no map,
/// nothing that matches), source, target (the file exists, or lies in the checkpoint), io,
/// resources.
ExtractReport extract_tensors(ExtractQuery const& query, Comm const& comm);

}  // namespace reshard
