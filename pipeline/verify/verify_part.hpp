#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/text/json.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

struct PartQuery {
  std::filesystem::path path;
  std::string part;  ///< "3/30", "auto/30" (parse_file_part)
  std::filesystem::path
      record;  ///< of what was read when; empty: reading_record_of() the checkpoint
};

struct PartReport {
  Json json;
  std::string text;  ///< lines; the last but one says whether it is sound
  std::string line;  ///< "part 3 of 30: 7 of 204 files, 1.2 GiB"
  bool sound = true;
};

/// `reshard verify PATH --subset 3/30`: reads one part of a checkpoint's files, compares it with
/// reshard.json, SHA256SUMS or integrity.json, and notes in the record when it did. Of all other
/// files it looks whether they are there, with the size that is recorded. Collective. Errors: usage
/// (nothing to compare with, no digests of files, a record that is none), source, io.
PartReport verify_part(PartQuery const& query, Comm const& comm);

}  // namespace reshard
