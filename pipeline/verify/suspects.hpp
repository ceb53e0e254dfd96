#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

struct SuspectQuery {
  std::filesystem::path path;
  std::string map = "auto";      ///< as in a job file; "none": tensors by their stored names
  std::filesystem::path config;  ///< config.json or its folder, where the checkpoint has none
  std::string prefix;            ///< of stored names: only those are read, and it is cut off
  std::uint64_t memory_bytes = std::uint64_t{128} << 20;  ///< of staging
  std::size_t row_limit = 50;                             ///< rows of the text; the JSON has all
  std::vector<std::filesystem::path> map_folders;
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
