#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/formats/format.hpp"
#include "core/formats/targets/target.hpp"
#include "stages/plan/config/config_comparison.hpp"

namespace reshard {

/// A description of the model, and what messages call it: "source.config (/models/a/config.json)".
struct NamedDescription {
  ModelDescription model;
  std::string name;
};

/// Of two descriptions of one model the first counts. What the other says otherwise, as a sentence
/// with every key and both values, and `outcome` after it; "" where they agree. `map` is that of
/// the job.
std::string contradiction(NamedDescription const& counts, NamedDescription const& other,
                          std::string const& outcome, PlanRequest const& request);

/// The config.json of a source's own: beside its weights, inside its container, or what travelled.
/// Where a container's own and the one beside it differ, or source.config and these, a warning says
/// which counts. `args`: of the source; null for none.
std::vector<std::string> config_warnings(Checkpoint const& source, Json const& args,
                                         PlanRequest const& request);

/// target.reference goes into the target as it is: a warning with what it says otherwise than the
/// source. Sizes of axes that differ are an Error of kind source.
std::vector<std::string> reference_warnings(ModelDescription own,
                                            huggingface::Folder const& reference,
                                            PlanRequest const& request);

/// The Error that `work` throws, except internal ones, which pass.
template <class Work>
std::optional<Error> refusal_of(Work&& work) {
  try {
    work();
  } catch (Error const& error) {
    if (error.kind() == ErrorKind::internal) throw;
    return error;
  }
  return std::nullopt;
}

/// Args that `args` does not state at all are as a config.json of the family makes them: they say
/// nothing.
Json completed_args(Json args, MapChoice const& maps, Json const& config);

/// The name of a folder's config.json in messages.
std::string config_name_of(huggingface::Folder const& folder);

}  // namespace reshard
