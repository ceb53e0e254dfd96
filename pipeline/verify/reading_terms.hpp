#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {

/// How the tensors of a checkpoint are read, where its files do not say so: the keys of a job file
/// that a command without one has as options, or takes from a record.
struct ReadingTerms {
  std::string map = "auto";      ///< as in a job file; "none": by stored names
  std::filesystem::path config;  ///< config.json or its folder; empty: what the checkpoint says
  std::string prefix;            ///< of stored names: only those are read, and it is cut off
  std::int64_t vocab = 0;        ///< rows of the vocabulary, where a job states them
  std::vector<std::string> frozen = {};  ///< patterns of parameters without optimizer state
  int tp = 1;                            ///< of Megatron Lite's files (source.tp, source.etp)
  int etp = 1;
  friend bool operator==(ReadingTerms const&, ReadingTerms const&) = default;
};

/// The job that wrote the target with this record; nullopt if its text cannot be read.
std::optional<JobSpec> recorded_job(Manifest const& manifest);

/// The word in job files for the map in a file: "llama" for "llama.toml".
std::string word_of_map(std::string_view file);

/// How the target with this record is read, by the job that wrote it: its prefix, and the map of
/// its names where config.json does not tell it. A record whose job cannot be read says nothing,
/// and neither do files that are gone.
ReadingTerms terms_of_target(Manifest const& manifest, MapLibrary const& library);

/// How a job reads its source.
ReadingTerms terms_of_job(JobSpec const& job);

/// Whether the map of this name describes a family; a map of names alone describes one side of a
/// job.
bool is_family(std::string const& map, MapLibrary const& library);

/// How its job read the source.
ReadingTerms terms_of_source(Manifest const& manifest);

/// Whether the target with this record was made from the checkpoint at `path`.
bool is_made_from(Manifest const& manifest, std::filesystem::path const& path);

/// `given`, and what it leaves open as in `recorded`.
ReadingTerms completed(ReadingTerms given, ReadingTerms const& recorded);

/// The terms beside `given`, as keys of a job file: `source.prefix = "model.", model.map =
/// "llama"`; "" for none.
std::string terms_beside(ReadingTerms const& given, ReadingTerms const& terms);

}  // namespace reshard
