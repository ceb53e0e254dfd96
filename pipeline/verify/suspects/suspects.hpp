#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/text/json.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/verify/checkpoint_query.hpp"

namespace reshard {

struct SuspectQuery : CheckpointQuery {
  std::uint64_t memory_bytes = std::uint64_t{128} << 20;  ///< of staging
  std::size_t row_limit = 50;                             ///< rows of the text; the JSON has all
};

struct SuspectReport {
  Json json;
  std::string text;
  bool sound = true;  ///< nothing was found
};

/// `reshard suspects PATH`: reads every weight once and lists what a sound model does not have
/// (suspects_in), by layer and expert where a map knows them. Collective. Errors: usage (no map),
/// source, io.
SuspectReport find_suspects(SuspectQuery const& query, Comm const& comm);

}  // namespace reshard
