#pragma once

#include <string>

#include "core/base/text/json.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/verify/digest.hpp"

namespace reshard {

struct VerifyReport {
  Json json;
  std::string text;
  bool sound = true;
};

/// `reshard verify PATH`: every file against the checkpoint's own reshard.json and SHA256SUMS, or
/// integrity.json, every logical tensor against the digests in the first, and with DigestScope::all
/// every replica against the others. Collective. Errors: usage (nothing to compare with), source,
/// io.
VerifyReport verify_one(DigestQuery query, Comm const& comm);

/// The files alone: what of a checkpoint disagrees with its manifest or integrity.json. Nothing to
/// compare with is an Error of kind usage. Collective.
std::vector<std::string> file_faults(std::filesystem::path const& path,
                                     Checkpoint const& checkpoint, Comm const& comm);

}  // namespace reshard
