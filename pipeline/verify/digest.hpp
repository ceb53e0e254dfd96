#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/verify/checkpoint_query.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/verify/scans/scan.hpp"

namespace reshard {

/// A checkpoint whose logical tensors are read.
struct DigestQuery : CheckpointQuery {
  std::vector<std::string> frozen = {};         ///< patterns of parameters without optimizer state
  std::string_view config_option = "--config";  ///< that gives `config`, for messages
  DigestScope scope = DigestScope::distinct;
  bool file_hashes = false;
  Index vocab = 0;  ///< rows that are vocabulary, where they are known; 0: as the checkpoint says
  bool states = false;  ///< optimizer state is compared with its weights
  bool sha256 = false;  ///< of digest_report(): SHA-256 of each tensor, layer and expert as well
  bool weights_only = false;  ///< of digest_report(): without optimizer state
};

/// An opened checkpoint and what a reading of it gave.
struct DigestedCheckpoint {
  Checkpoint checkpoint;
  JobPlan catalogue;
  DigestWork work;
  ScanResult found;
  std::vector<TensorDigest> tensors;
  std::string total;
  std::vector<StateCheck> checks;  ///< of optimizer state, with DigestQuery::states
  std::vector<StateCheck> failed;  ///< those that do not hold
};

/// Opens a checkpoint in terms of its logical tensors. Collective. Errors: usage (no map), source.
JobPlan open_logical(Checkpoint const& checkpoint, DigestQuery const& query, Comm const& comm);

/// The query follows a manifest of its checkpoint: it counts the same rows of the vocabulary and
/// has the same names, by the prefix and the map that its job gave the target, unless the user says
/// otherwise. Looks through Sight.
void follow(DigestQuery& query, Manifest const& manifest);

/// The checkpoint's own manifest, which the query then follows. `notes`: why there is none
/// that can be followed. Collective.
std::optional<Manifest> follow_own_manifest(DigestQuery& query, Checkpoint const& checkpoint,
                                            std::vector<std::string>& notes, Comm const& comm);

/// Opens it and reads every byte that counts once. Collective.
DigestedCheckpoint digest_checkpoint(DigestQuery const& query, Comm const& comm);

struct DigestReport {
  Json json;
  std::string text;
};

/// `reshard digest`: the digest of every logical tensor, optimizer state of rank files included,
/// and the total. It has a note where the total is not that of the checkpoint's own manifest. With
/// DigestQuery::sha256 tensors are read in order, each by one rank.
DigestReport digest_report(DigestQuery query, Comm const& comm);

}  // namespace reshard
