#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/mapping/maps/map_library.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/verify/compare/compare.hpp"
#include "pipeline/view/view_page.hpp"

namespace reshard {

/// The subject of a page: one checkpoint, a job's source and target, or the differences of two
/// checkpoints.
struct ViewQuery {
  std::filesystem::path path;             ///< a checkpoint, when there is nothing else
  std::optional<JobSpec> job;             ///< carried out as far as its plan
  int ranks = 0;                          ///< of the job; 0: those that plan
  std::filesystem::path measured;         ///< the report of an earlier run, whose rates the job is
                                          ///< expected to have; empty for none
  std::optional<CompareRequest> compare;  ///< two checkpoints, all of whose tensors are read
  std::string map =
      "auto";  ///< of a checkpoint, as in a job file; "none": tensors by their stored names
  std::filesystem::path config;
  std::string prefix;  ///< of stored names: only those are read, and it is cut off
  MapLibrary library;
  std::optional<std::filesystem::path> output;  ///< for the page; "-" is stdout
  bool json = false;
  PageData data = PageData::automatic;
};

struct ViewOutput {
  std::string text;  ///< for stdout: the page, the JSON document, or one line about the page
  std::vector<std::string> warnings;
};

/// Reads headers, and the tensors of two checkpoints; plans; writes the page to its file. What is
/// left to be printed comes back on rank 0. Collective; a place that cannot hold the page is an
/// Error of kind usage before anything is read.
ViewOutput view(ViewQuery const& query, Comm const& comm);

}  // namespace reshard
