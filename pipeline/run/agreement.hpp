#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/journal/job_identity.hpp"

namespace reshard {

/// Something that must be the same on every rank, as text.
struct SharedFact {
  std::string name;   ///< for a sentence: "the command"
  std::string value;  ///< for a sentence, too
  ErrorKind kind;     ///< of the Error when it differs
  std::string advice;
};

/// Compares facts over the ranks; the first that differs is an Error that names it, both values and
/// two ranks. Every rank gives the same names. Collective.
void check_same(Comm const& comm, std::span<SharedFact const> facts);

/// The program, the words of the command line and RESHARD_MAPS. `words` are those behind the
/// program's name. Collective.
void check_same_start(Comm const& comm, std::vector<std::string> const& words);

/// The folder that relative paths of a job count from, when it has any. Collective.
void check_same_folder(Comm const& comm, JobSpec const& job);

/// Compares the plans of the ranks. Collective.
void check_same_identity(Comm const& comm, JobIdentity const& identity);

}  // namespace reshard
