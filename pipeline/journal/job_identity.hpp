#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "pipeline/job/job_spec.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// The identity of a run's work: only a run with the same may resume where the other stopped. Each
/// part is a digest.
struct JobIdentity {
  std::string program;  ///< this executable, to the byte
  std::string job;      ///< the job, except keys that only change its speed
  std::string source;   ///< size, time and inode of every file that describes or holds the source
  std::string plan;     ///< files, cells and regions
  std::string job_text = {};  ///< what `job` is the digest of; not compared
  std::string previous = {};  ///< what may be taken over of a previous target
};

/// Looks at the describing files through Sight, except for those of `read`: they count as they were
/// when they were read.
JobIdentity identity_of(JobSpec const& spec, Checkpoint const& source, JobPlan const& plan,
                        std::map<std::filesystem::path, FileStamp> const& read = {});

/// Version and digest of this executable, which is read once.
std::string const& program_digest();

/// A line "name digest" for each part, and back; nothing for any other text.
std::string identity_text(JobIdentity const& identity);
std::optional<JobIdentity> parse_identity(std::string_view text);

/// The first difference, for a sentence: "the source has changed". "" when all is the same.
std::string difference(JobIdentity const& before, JobIdentity const& now);

}  // namespace reshard
